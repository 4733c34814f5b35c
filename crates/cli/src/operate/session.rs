//! What every command works with: the flags that all of them take, the store, and the output.

use std::env;
use std::path::PathBuf;

use quotagate_operate::api::{Changed, MAX_BY, MAX_REASON};
use tokio::runtime::Builder;

use super::client::{AdminAddr, Answer, Client, Token, user_at_host};
use super::display::{Output, say};
use super::failure::Failure;
use crate::text::quoted;

/// The variable with the admin address, and the address where it is not set.
const ADMIN: (&str, &str) = ("QUOTAGATE_ADMIN", "127.0.0.1:9181");

/// The flags that all commands take.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Common {
    /// The store's admin address: host:port, http://host:port or unix:/path.sock
    #[arg(long, env = ADMIN.0, default_value = ADMIN.1, value_name = "ADDR", global = true)]
    admin: AdminAddr,
    /// A file with the token that the store requires [default: QUOTAGATE_TOKEN, then the file named
    /// by QUOTAGATE_ADMIN_TOKEN_FILE or QUOTAGATE_TOKEN_FILE]
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// The domain [default: all domains; for a change, the only domain that the store knows]
    #[arg(long, env = "QUOTAGATE_DOMAIN", value_name = "NAME", global = true)]
    domain: Option<String>,
    /// Print the store's JSON unchanged; indented on a terminal
    #[arg(long, global = true)]
    json: bool,
    /// Your name, for the history of changes [default: user@host]. The name of a token comes first,
    /// and this is a remark beside it
    #[arg(long, value_name = "NAME", global = true)]
    by: Option<String>,
    /// Why you make a change, for the history
    #[arg(long, value_name = "TEXT", global = true)]
    reason: Option<String>,
}

/// What a command works with.
#[derive(Debug)]
pub(crate) struct Session {
    /// The store.
    pub(crate) client: Client,
    /// Where data goes, and in which form.
    pub(crate) output: Output,
    /// The name of the operator who makes a change.
    pub(crate) by: String,
    /// The flags that lead to the same store and domain from a shell with the same variables.
    target: Vec<String>,
}

impl Common {
    /// Runs a command with these flags.
    ///
    /// # Errors
    /// When a flag is wrong, or the command fails.
    pub(super) fn session<F: Future<Output = Result<(), Failure>>>(
        &self,
        command: impl FnOnce(Session) -> F,
    ) -> Result<(), Failure> {
        let client = Client {
            address: self.admin.clone(),
            token: Token::find(self.token_file.as_deref())?,
            domain: self.domain.clone().filter(|domain| !domain.is_empty()),
            reason: self.reason.clone(),
        };
        if self.reason.as_ref().is_some_and(|reason| reason.len() > MAX_REASON) {
            return Err(Failure::Usage(format!("--reason takes at most {MAX_REASON} bytes")));
        }
        let by = self.by.clone().unwrap_or_else(user_at_host);
        if by.trim().is_empty() || by.len() > MAX_BY {
            return Err(Failure::Usage(format!("--by must be a name of at most {MAX_BY} bytes")));
        }
        let usual = env::var(ADMIN.0).ok().unwrap_or_else(|| ADMIN.1.to_owned());
        let target = self.target(usual.parse().ok().as_ref());
        let session = Session { client, output: Output::new(self.json), by, target };
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|error| Failure::Refused(format!("cannot start: {error}")))?;
        let done = runtime.block_on(command(session));
        // A name lookup that hangs must not delay the end.
        runtime.shutdown_background();
        done
    }

    fn target(&self, by_variable: Option<&AdminAddr>) -> Vec<String> {
        let mut flags = Vec::new();
        if Some(&self.admin) != by_variable {
            flags.extend(["--admin".to_owned(), self.admin.to_string()]);
        }
        if let Some(file) = &self.token_file {
            flags.extend(["--token-file".to_owned(), file.display().to_string()]);
        }
        if let Some(domain) = self.domain.as_ref().filter(|domain| !domain.is_empty()) {
            flags.extend(["--domain".to_owned(), domain.clone()]);
        }
        flags
    }
}

impl Session {
    /// A command on the same store and domain, quoted for a shell.
    pub(crate) fn command(&self, arguments: &[impl AsRef<str>]) -> String {
        let arguments =
            arguments.iter().map(AsRef::as_ref).chain(self.target.iter().map(String::as_str));
        std::iter::once("quotagate".to_owned())
            .chain(arguments.map(quoted))
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Prints what was done.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn changed(&self, answer: &Answer<Changed>) -> Result<(), Failure> {
        if self.output.json {
            self.output.json(&answer.raw)
        } else {
            self.output.sentence(&answer.value.done)
        }
    }

    /// Warns that a store without Redis forgets the change.
    pub(crate) fn warn_unless_durable(&self, changed: &Changed) {
        if !changed.durable {
            say(
                "This store keeps it in memory: the change is lost when the process ends, and other stores do not see it.",
            );
        }
    }
}
