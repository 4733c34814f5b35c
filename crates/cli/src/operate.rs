//! The commands that talk to the admin address of a running store: what they have in common.
//!
//! Data goes to standard output, words about it to standard error. Exit status: 0 done, 1 refused or not found, 2 the
//! command is wrong, 3 no store answered, or it cannot reach Redis.

mod address;
mod client;
mod dial;
mod domains;
mod failure;
mod history;
mod identity;
mod output;
mod overrides;
mod partition;
mod reset;
mod screen;
mod table;
mod token;
mod top;
mod undo;
mod usage;
mod words;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use quotagate_quota::protocol::MAX_UNITS;
use quotagate_store::api::{MAX_BY, MAX_FOR_MS};
use tokio::runtime::Builder;

use address::AdminAddr;
use client::Client;
use failure::Failure;
use output::Output;
use token::Token;

/// One of these commands.
#[derive(clap::Subcommand)]
pub(crate) enum Operation {
    /// Change a policy on the running fleet: within 10 s, without a new configuration
    Dial(dial::Args),
    /// Give one partition of a policy another quota, no limit, or nothing
    Override(overrides::Args),
    /// Show what a partition has used of each policy's quota
    Usage(usage::Args),
    /// Delete the counter of a partition: it has its whole quota once more
    Reset(reset::Args),
    /// Show the fullest and the most refused partitions
    Top(top::Args),
    /// Show the changes of dials, overrides and counters, the newest first
    History(history::Args),
    /// Show the domains that proxies have reported, or forget one
    Domains(domains::Args),
}

/// The variable with the admin address, and the address where it is not set.
const ADMIN: (&str, &str) = ("QUOTAGATE_ADMIN", "127.0.0.1:9181");

/// The flags that all of them take.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Which store, and who asks")]
pub(crate) struct Common {
    /// The store's admin address: host:port, http://host:port or unix:/path.sock
    #[arg(
        long,
        env = ADMIN.0,
        default_value = ADMIN.1,
        value_name = "ADDR",
        global = true
    )]
    admin: AdminAddr,
    /// A file with the token that the store wants [default: QUOTAGATE_TOKEN, then the file of
    /// QUOTAGATE_ADMIN_TOKEN_FILE or QUOTAGATE_TOKEN_FILE]
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// The domain; needed where the store knows several
    #[arg(long, env = "QUOTAGATE_DOMAIN", value_name = "NAME", global = true)]
    domain: Option<String>,
    /// Print the store's JSON as it comes; on a terminal indented
    #[arg(long, global = true)]
    json: bool,
    /// Who makes a change, for the history and the log [default: user@host]
    #[arg(long, value_name = "NAME", global = true)]
    by: Option<String>,
}

/// What a command works with.
#[derive(Debug)]
struct Session {
    client: Client,
    output: Output,
    by: String,
    /// The flags that lead there once more.
    place: Vec<String>,
}

/// Runs one to its end.
pub(crate) fn run(operation: &Operation) -> ExitCode {
    let done = match operation {
        Operation::Dial(args) => args.common.session(|session| dial::run(args, session)),
        Operation::Override(args) => args.common.session(|session| overrides::run(args, session)),
        Operation::Usage(args) => args.common.session(|session| usage::run(args, session)),
        Operation::Reset(args) => args.common.session(|session| reset::run(args, session)),
        Operation::Top(args) => args.common.session(|session| top::run(args, session)),
        Operation::History(args) => args.common.session(|session| history::run(args, session)),
        Operation::Domains(args) => args.common.session(|session| domains::run(args, session)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(),
    }
}

impl Common {
    fn session<F: Future<Output = Result<(), Failure>>>(
        &self,
        command: impl FnOnce(Session) -> F,
    ) -> Result<(), Failure> {
        let client = Client {
            address: self.admin.clone(),
            token: Token::find(self.token_file.as_deref())?,
            domain: self.domain.clone().filter(|domain| !domain.is_empty()),
        };
        let by = self.by.clone().unwrap_or_else(identity::user_at_host);
        if by.trim().is_empty() || by.len() > MAX_BY {
            return Err(Failure::Usage(format!("--by must be a name of at most {MAX_BY} bytes")));
        }
        let usual = env::var(ADMIN.0).ok().unwrap_or_else(|| ADMIN.1.to_owned());
        let place = self.place(usual.parse().ok().as_ref());
        let session = Session { client, output: Output::new(self.json), by, place };
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::Refused(format!("cannot start: {error}")))?;
        let done = runtime.block_on(command(session));
        // A name that is still being looked up must not hold up the end.
        runtime.shutdown_background();
        done
    }
}

/// A number of units, with separators where [`words::number`] writes them: `5000`, `5,000`, `5 000`, `5_000`.
fn units(text: &str) -> Result<u64, String> {
    const SEPARATORS: [char; 5] = [',', '_', ' ', '\u{a0}', '\u{202f}'];
    let digits = match text.chars().find(|c| !c.is_ascii_digit()).filter(|c| SEPARATORS.contains(c)) {
        Some(separator) => {
            let mut groups = text.split(separator);
            let first = groups.next().filter(|first| (1..=3).contains(&first.len()));
            // `1,5` and `1,0000` are typing errors, or fractions.
            first.filter(|_| groups.all(|group| group.len() == 3)).map(|_| text.replace(separator, ""))
        }
        None => Some(text.to_owned()),
    };
    let digits = digits.filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
    let number = digits.and_then(|digits| digits.parse().ok()).filter(|number| *number <= MAX_UNITS);
    number.ok_or_else(|| format!("must be a whole number from 0 to {MAX_UNITS}, such as 5000 or 5,000"))
}

/// A time until a change reverts, in milliseconds: `90s`, `1h`, `1h30m`, `7d`.
fn for_ms(text: &str) -> Result<u64, String> {
    let wanted = "must be a duration from 1s to 366d, such as 30m, 1h or 7d";
    let time: Duration = humantime::parse_duration(text).map_err(|_| wanted)?;
    let ms = u64::try_from(time.as_millis()).map_err(|_| wanted)?;
    if (1000..=MAX_FOR_MS).contains(&ms) { Ok(ms) } else { Err(wanted.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, ms) in [("1s", 1000), ("90s", 90_000), ("1h30m", 5_400_000), ("366d", MAX_FOR_MS)] {
            assert_eq!(for_ms(text), Ok(ms));
        }
        for wrong in ["", "0s", "999ms", "1", "-1h", "367d", "1e9d", "99999999999999999999d", "soon"] {
            assert!(for_ms(wrong).unwrap_err().contains("30m, 1h or 7d"), "{wrong}");
        }
    }

    #[test]
    fn numbers_are_read_as_the_commands_print_them() {
        for number in [0, 7, 999, 1000, 12_345, 1_000_000, MAX_UNITS] {
            let printed = words::number(number);
            for text in [number.to_string(), printed.replace(',', " "), printed.replace(',', "_"), printed] {
                assert_eq!(units(&text), Ok(number), "{text}");
            }
        }
        let above = (MAX_UNITS + 1).to_string();
        for wrong in [
            "",
            ",",
            "1,5",
            "1,00",
            "1,0000",
            "1000,000",
            "1,000_000",
            ",100",
            "1,",
            "1.5",
            "-1",
            "x",
            &above,
        ] {
            assert!(units(wrong).unwrap_err().contains("such as 5000 or 5,000"), "{wrong}");
        }
    }
}
