//! The argument that names a partition, with secrets asked for where nobody else sees them.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _};
use std::path::PathBuf;
use std::{env, fs};

use quotagate_quota::request::naming::{DigestKey, Name, Secret};

use super::Session;
use super::failure::Failure;
use super::output::say;

const KEY_VARIABLE: &str = "QUOTAGATE_DIGEST_KEY";

/// Longest secret, in bytes: no header is longer.
const MAX_SECRET: u64 = 64 * 1024;

/// Which partition.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PartitionArgs {
    /// label=value, joined by commas: jwt.sub=alice, ip=192.0.2.7, or as `top` and access logs show it; * is
    /// everyone's. %XX is a byte, as in a URL
    #[arg(required_unless_present = "secret", allow_hyphen_values = true)]
    partition: Option<String>,
    /// A label whose value is secret, such as header.x-api-key: it is asked for without echo, or read as a line from
    /// standard input, digested here, and never sent. It is the partition, or stands where PARTITION has its label alone
    #[arg(long, value_name = "LABEL")]
    secret: Vec<String>,
    /// The value of a header, cookie or query parameter in PARTITION is no secret: the policy file does not call it one
    #[arg(long)]
    plain: bool,
    /// A file with the filter's `digest_key` [default: QUOTAGATE_DIGEST_KEY, or what follows from the domain]
    #[arg(long, value_name = "FILE")]
    digest_key_file: Option<PathBuf>,
}

impl PartitionArgs {
    /// The partition as it stands in keys of `policy`; of any, where that is empty.
    ///
    /// # Errors
    /// When it names nobody, a secret or a key cannot be read, or the domain that a key follows from is not known.
    pub(crate) async fn encode(&self, session: &Session, policy: &str) -> Result<String, Failure> {
        let unnamed = |error: quotagate_quota::request::naming::NameError| Failure::Usage(error.to_string());
        let mut secrets = Vec::new();
        for label in &self.secret {
            // Whether there is such a label, before anybody types something.
            Secret::new(label, vec![b'x']).map_err(unnamed)?;
            secrets.push(Secret::new(label, ask(label)?).map_err(unnamed)?);
        }
        let name = Name::parse(self.partition.as_deref().unwrap_or_default(), secrets).map_err(unnamed)?;
        if let Some(label) = name.written_out().filter(|_| !self.plain) {
            return Err(Failure::Usage(format!(
                "the value of {label} may be a secret, which would be sent, logged and shown: name it by --secret {label}, \
                 and it is digested here. If the policy file does not call it `secret`, say --plain"
            )));
        }
        if let Some(address) = name.single_ipv6() {
            say(&format!(
                "Mind: clients of IPv6 are counted by their /64 unless the policy says otherwise, and this is one address. \
                 Its network is ip={address}/64."
            ));
        }
        if !name.needs_key() {
            return Ok(name.encode(&DigestKey::derived(""), "", ""));
        }
        let domain = session.client.domain().await?;
        let key = match self.digest_key()? {
            Some(key) => key,
            None => {
                say(&format!(
                    "Digested by the key that follows from the domain {domain}. Where the filter has a `digest_key`, \
                     this names nobody: give that key by --digest-key-file or {KEY_VARIABLE}."
                ));
                DigestKey::derived(&domain)
            }
        };
        Ok(name.encode(&key, &domain, policy))
    }

    /// What a command that is given the same partition, encoded, must say besides.
    pub(crate) const fn flags(&self) -> &'static [&'static str] {
        if self.plain { &["--plain"] } else { &[] }
    }

    fn digest_key(&self) -> Result<Option<DigestKey>, Failure> {
        let (text, source) = match &self.digest_key_file {
            Some(file) => {
                let source = format!("--digest-key-file {}", file.display());
                let text = fs::read(file);
                (text.map_err(|error| Failure::Usage(format!("{source} cannot be read: {error}")))?, source)
            }
            None => match env::var_os(KEY_VARIABLE).filter(|key| !key.is_empty()) {
                Some(key) => (key.into_encoded_bytes(), KEY_VARIABLE.to_owned()),
                None => return Ok(None),
            },
        };
        let key = without_line_end(&text);
        if key.is_empty() {
            return Err(Failure::Usage(format!("{source} holds no key")));
        }
        Ok(Some(DigestKey::keyed(key)))
    }
}

/// Asks on a terminal without echo, or reads the next line of standard input.
fn ask(label: &str) -> Result<Vec<u8>, Failure> {
    let unread = |error: io::Error| Failure::Usage(format!("cannot read the secret {label}: {error}"));
    if io::stdin().is_terminal() {
        let typed = rpassword::prompt_password(format!("{label} (not shown): "));
        return typed.map(String::into_bytes).map_err(unread);
    }
    let mut line = Vec::new();
    io::stdin().lock().take(MAX_SECRET).read_until(b'\n', &mut line).map_err(unread)?;
    let secret = without_line_end(&line).to_vec();
    if secret.is_empty() {
        return Err(Failure::Usage(format!(
            "the secret {label} is to come on standard input, which holds no such line"
        )));
    }
    Ok(secret)
}

fn without_line_end(text: &[u8]) -> &[u8] {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    text.strip_suffix(b"\r").unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_a_line_is_cut_off() {
        for (text, secret) in [("a b \n", "a b "), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a", "a"), ("\n", "")] {
            assert_eq!(without_line_end(text.as_bytes()), secret.as_bytes());
        }
    }
}
