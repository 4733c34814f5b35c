//! Words and phrases that the style guide replaces.

/// What not to say, and what to say.
const REPLACED: [(&str, &str); 16] = [
    ("by which", "a sentence of its own"),
    ("deed", "script operation"),
    ("for want of", "without"),
    ("give back", "refund"),
    ("given back", "refunded"),
    ("gives back", "refunds"),
    ("heard of", "known"),
    ("held ahead", "prefetched"),
    ("homeless", "unroutable"),
    ("of which", "a sentence of its own"),
    ("outstays", "exceeds the idle timeout"),
    ("put back", "refunded"),
    ("puts back", "refunds"),
    ("shelf", "hash or snapshot"),
    ("somebody", "the actor's name"),
    ("whoever", "the actor's name"),
];

/// The rules that a line breaks.
pub fn replaced(line: &str) -> Vec<String> {
    let lower = line.to_lowercase();
    let broken = REPLACED.iter().filter(|(phrase, _)| contains(&lower, phrase));
    broken.map(|(phrase, instead)| format!("\"{phrase}\": say {instead}")).collect()
}

/// Whether a text contains a phrase as whole words.
fn contains(text: &str, phrase: &str) -> bool {
    let outside =
        |neighbour: Option<char>| neighbour.is_none_or(|c| !c.is_alphanumeric() && c != '_');
    text.match_indices(phrase).any(|(at, _)| {
        let (before, rest) = text.split_at(at);
        let after = rest.strip_prefix(phrase).and_then(|rest| rest.chars().next());
        outside(before.chars().next_back()) && outside(after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_are_found_in_any_case() {
        assert_eq!(replaced("Whoever asks"), ["\"whoever\": say the actor's name"]);
        assert!(replaced("indeed, a bookshelf; sh_elf").is_empty());
        assert_eq!(replaced("whoever gives back").len(), 2);
    }
}
