//! Texts that others chose, for people and their terminals.

use unicode_general_category::{GeneralCategory, get_general_category};

/// Control characters, and characters of Unicode that are invisible or change the direction of
/// text.
pub fn is_harmful(c: char) -> bool {
    use GeneralCategory::{
        Control, Format, LineSeparator, ParagraphSeparator, PrivateUse, Unassigned,
    };
    matches!(
        get_general_category(c),
        Control | Format | LineSeparator | ParagraphSeparator | PrivateUse | Unassigned
    )
}

/// JSON without harmful characters. They occur in strings only, where they can be escaped.
pub fn harmless(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if is_harmful(c) && c != '\n' {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(c);
        }
    }
    out
}
