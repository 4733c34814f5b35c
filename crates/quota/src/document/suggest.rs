//! Suggestions for names that do not exist.

/// `: did you mean ...?` for the nearest of `known`, or the list of `known` if none is near.
pub(crate) fn hint(name: &str, known: &[&str]) -> String {
    match nearest(name, known) {
        Some(near) => format!(": did you mean {near:?}?"),
        None if known.is_empty() => String::new(),
        None => format!(": known are {}", known.join(", ")),
    }
}

/// `a, b or c`.
pub(crate) fn alternatives(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [word] => (*word).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// The known name with the fewest edits from `name`. `None` if they are too many for its length.
pub(crate) fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let canonical = |text: &str| text.to_ascii_lowercase().replace('-', "_");
    let name = canonical(name);
    // No configuration has so long a name, and the work grows with the square of the length.
    if name.len() > 64 {
        return None;
    }
    known
        .iter()
        .map(|known| (distance(&name, &canonical(known)), *known))
        .filter(|(edits, known)| *edits <= known.len().min(9) / 3)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, known)| known)
}

/// The edits between two names. The same letters in another order count as one edit.
fn distance(a: &str, b: &str) -> usize {
    let sorted = |text: &str| {
        let mut bytes = text.as_bytes().to_vec();
        bytes.sort_unstable();
        bytes
    };
    if a != b && sorted(a) == sorted(b) { 1 } else { edits(a, b) }
}

/// Insertions, deletions and replacements of bytes between two texts (Levenshtein).
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, byte) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        let mut cells = row.iter_mut();
        if let Some(first) = cells.next() {
            *first = left;
        }
        for (cell, other) in cells.zip(b.bytes()) {
            let replaced = diagonal + usize::from(byte != other);
            diagonal = *cell;
            left = replaced.min(diagonal + 1).min(left + 1);
            *cell = left;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        for (a, b, n) in
            [("", "", 0), ("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("ab", "ba", 2)]
        {
            assert_eq!(edits(a, b), n, "{a} {b}");
        }
    }

    #[test]
    fn the_nearest_name_is_suggested_and_far_ones_are_listed() {
        let known = ["window", "quota", "partition_by"];
        for (name, hinted) in [
            ("qutoa", ": did you mean \"quota\"?"),
            ("windw", ": did you mean \"window\"?"),
            ("Quota", ": did you mean \"quota\"?"),
            ("partitionBy", ": did you mean \"partition_by\"?"),
            ("partition-by", ": did you mean \"partition_by\"?"),
            ("limit", ": known are window, quota, partition_by"),
        ] {
            assert_eq!(hint(name, &known), hinted);
        }
        assert_eq!(hint("x", &[]), "");
        assert_eq!(alternatives(&["a", "b", "c"]), "a, b or c");
    }
}
