//! The commands that change something, each with the command that undoes it.

pub(super) mod dial;
pub(super) mod document;
pub(super) mod overrides;
pub(super) mod release;
pub(super) mod reset;
mod undo;

use std::io::{self, IsTerminal as _};

use super::failure::Failure;
use crate::standard::error_text;

/// Refuses a command that asks first where nobody can be asked. `asks` says which, and before what.
///
/// # Errors
/// Without `yes` and without a terminal.
fn check_consent(yes: bool, asks: &str) -> Result<(), Failure> {
    if yes || io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Failure::Usage(format!("{asks}: without a terminal, add --yes")))
}

/// Asks the operator at the terminal, and waits for a yes.
///
/// # Errors
/// When the answer is another one.
fn confirm(question: &str) -> Result<(), Failure> {
    let mut answer = String::new();
    let read =
        error_text(&format!("{question} [y/N] ")).and_then(|()| io::stdin().read_line(&mut answer));
    match (read, answer.trim()) {
        (Ok(_), "y" | "Y" | "yes" | "Yes") => Ok(()),
        _ => Err(Failure::Refused("nothing was changed".to_owned())),
    }
}
