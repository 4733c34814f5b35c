//! Rust: the words of identifiers, which the glossary binds as it binds comments.

use anyhow::{Result, anyhow};
use proc_macro2::{TokenStream, TokenTree};

use super::{Fault, words};

/// The faults of the identifiers of a Rust file, once for each line.
///
/// # Errors
/// When the text is not Rust.
pub fn faults(text: &str) -> Result<Vec<Fault>> {
    let mut faults = Vec::new();
    visit(tokens(text)?, &mut faults);
    faults.dedup();
    Ok(faults)
}

/// The tokens of a Rust file.
///
/// # Errors
/// When the text is not Rust.
pub fn tokens(text: &str) -> Result<TokenStream> {
    text.parse().map_err(|error: proc_macro2::LexError| {
        let start = error.span().start();
        anyhow!("line {}, column {}: {error}", start.line, start.column)
    })
}

fn visit(tokens: TokenStream, faults: &mut Vec<Fault>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => visit(group.stream(), faults),
            TokenTree::Ident(name) => {
                let line = name.span().start().line;
                let name = name.to_string();
                let rules = words::replaced_in_name(&name).into_iter();
                faults.extend(rules.map(|rule| Fault { line, rule: format!("`{name}`: {rule}") }));
            }
            TokenTree::Literal(_) | TokenTree::Punct(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_of_every_kind_are_read() {
        for code in [
            "fn give_back() {}",
            "struct AlarmClock;",
            "enum E { Homeless }",
            "struct S { told: u8 }",
            "mod desk;",
            "fn f() { let (at, place) = g(); }",
            "fn f(sheets: &[u8]) {}",
            "const OUTSTAYS: u8 = 1;",
            "fn f() { vec![told] }",
        ] {
            assert_eq!(faults(code).unwrap().len(), 1, "{code}");
        }
        let [fault] = &faults("\nlet place = place(place);").unwrap()[..] else { panic!() };
        assert_eq!((fault.line, fault.rule.starts_with("`place`: ")), (2, true), "{fault:?}");
    }

    #[test]
    fn comments_strings_and_similar_words_are_not_identifiers_to_mend() {
        let code = "/// told\nfn f() { let a: OnceCell<u8> = replace(\"told\", 'a'); return a; }\n\
                    // place\nstruct Placeholder; fn displaced() {}";
        assert_eq!(faults(code).unwrap(), []);
        assert!(faults("fn f( {").unwrap_err().to_string().starts_with("line 1"));
    }
}
