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

/// Words of the glossary that plain English needs, too: only names do without them.
const REPLACED_IN_NAMES: [(&str, &str); 8] = [
    ("alarm", "deadline timer"),
    ("desk", "control store"),
    ("lent", "lease"),
    ("place", "index, permit, path, position, or what is there"),
    ("returns", "refunds"),
    ("sheet", "snapshot or hash"),
    ("told", "who said what, such as `report`, or lagging"),
    ("turned", "runtime override, or dial"),
];
/// A name of more words is a sentence, such as the name of a test, and in plain English.
const LONGEST_NAME: usize = 3;

/// The rules that an identifier breaks.
pub fn replaced_in_name(name: &str) -> Vec<String> {
    let words = words(name);
    let mut broken = replaced(&words.join(" "));
    if words.len() <= LONGEST_NAME {
        let is = |word: &str, one: &str| word == one || word.strip_suffix('s') == Some(one);
        let names = REPLACED_IN_NAMES.iter();
        let names = names.filter(|(replaced, _)| words.iter().any(|word| is(word, replaced)));
        broken.extend(names.map(|(word, instead)| format!("\"{word}\": say {instead}")));
    }
    broken
}

/// The words of an identifier, in lower case: the parts between underscores, and of camel case.
fn words(name: &str) -> Vec<String> {
    let mut words = Vec::new();
    for part in name.split('_').filter(|part| !part.is_empty()) {
        let mut after_capital = false;
        words.push(String::new());
        for (at, character) in part.char_indices() {
            if at > 0 && character.is_uppercase() && !after_capital {
                words.push(String::new());
            }
            after_capital = character.is_uppercase();
            words.last_mut().into_iter().for_each(|word| word.extend(character.to_lowercase()));
        }
    }
    words
}

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

    #[test]
    fn names_are_read_word_by_word() {
        assert_eq!(words("_give_back2"), ["give", "back2"]);
        assert_eq!(words("OnceCell"), ["once", "cell"]);
        assert_eq!(words("PLACE_OF"), ["place", "of"]);
        for name in ["give_back", "PutBack", "DEED", "places", "PlaceOf", "_told", "turned_on"] {
            assert_eq!(replaced_in_name(name).len(), 1, "{name}");
        }
        for name in ["replace", "displaced", "indeed", "return_to", "OnceCell", "turn", "salesheet"]
        {
            assert_eq!(replaced_in_name(name), [""; 0], "{name}");
        }
    }

    #[test]
    fn sentences_may_have_words_of_plain_english_but_no_replaced_phrases() {
        assert_eq!(replaced_in_name("clients_are_told_when_to_retry"), [""; 0]);
        assert_eq!(replaced_in_name("units_are_given_back_at_once").len(), 1);
    }
}
