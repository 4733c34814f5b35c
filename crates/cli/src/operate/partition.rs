//! The argument that names a partition. Secrets in it are read without echo, and only their digests
//! leave this machine.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _};
use std::path::PathBuf;
use std::{env, fs};

use quotagate_quota::request::naming::{DigestKey, Name, Secret};

use super::display::say;
use super::failure::Failure;
use super::session::Session;

const KEY_VARIABLE: &str = "QUOTAGATE_DIGEST_KEY";

/// Longest secret, in bytes: no header is longer.
const MAX_SECRET: u64 = 64 * 1024;

/// A partition.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PartitionArgs {
    /// label=value, joined by commas, as `top` and access logs show it: jwt.sub=alice,
    /// ip=192.0.2.7. * is the one counter of a policy without partitions. %XX is a byte, as in a
    /// URL
    #[arg(allow_hyphen_values = true)]
    pub(crate) partition: Option<String>,
    /// A label whose value is secret, such as header.x-api-key. The value is read without echo, or
    /// as a line from standard input, and only its digest is sent. It is the whole partition, or
    /// stands where PARTITION has the label alone
    #[arg(long, value_name = "LABEL")]
    secret: Vec<String>,
    /// The header, cookie or query parameter in PARTITION is no secret, since the policy does not
    /// mark it `secret`
    #[arg(long)]
    plain: bool,
    /// A file with the filter's `digest_key` [default: QUOTAGATE_DIGEST_KEY, else a key derived
    /// from the domain]
    #[arg(long, value_name = "FILE")]
    digest_key_file: Option<PathBuf>,
}

impl PartitionArgs {
    /// The partition as keys of `policy` contain it; as keys of any policy contain it, if `policy`
    /// is empty.
    ///
    /// # Errors
    /// When it is no partition, when a secret or a key cannot be read, or when the key has to be
    /// derived from a domain that is not known.
    pub(crate) async fn encode(&self, session: &Session, policy: &str) -> Result<String, Failure> {
        let invalid =
            |error: quotagate_quota::request::naming::NameError| Failure::Usage(error.to_string());
        if !self.is_given() {
            return Err(Failure::Usage(
                "PARTITION is missing: name one as label=value, such as jwt.sub=alice".to_owned(),
            ));
        }
        let mut secrets = Vec::new();
        for label in &self.secret {
            // Checks the label before the operator types a secret.
            Secret::new(label, vec![b'x']).map_err(invalid)?;
            secrets.push(Secret::new(label, ask(label)?).map_err(invalid)?);
        }
        let name =
            Name::parse(self.partition.as_deref().unwrap_or_default(), secrets).map_err(invalid)?;
        if let Some(label) = name.written_out().filter(|_| !self.plain) {
            return Err(Failure::Usage(format!(
                "the value of {label} may be a secret, and would be sent, logged and shown: use --secret {label}, \
                 which sends a digest. If the policy does not mark it `secret`, add --plain"
            )));
        }
        if let Some(address) = name.single_ipv6() {
            say(&format!(
                "Note: this is one IPv6 address, but policies count IPv6 clients by their /64 unless they say otherwise. \
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
                    "Digested with the key derived from the domain {domain}. If the filter has a `digest_key`, this matches \
                     no client: pass that key with --digest-key-file or {KEY_VARIABLE}."
                ));
                DigestKey::derived(&domain)
            }
        };
        Ok(name.encode(&key, &domain, policy))
    }

    /// Whether there is one.
    pub(crate) fn is_given(&self) -> bool {
        self.partition.is_some() || !self.secret.is_empty()
    }

    /// The flags that a command needs besides this partition, encoded.
    pub(crate) const fn flags(&self) -> &'static [&'static str] {
        if self.plain { &["--plain"] } else { &[] }
    }

    fn digest_key(&self) -> Result<Option<DigestKey>, Failure> {
        let (text, source) = match &self.digest_key_file {
            Some(file) => {
                let source = format!("--digest-key-file {}", file.display());
                let text = fs::read(file);
                (
                    text.map_err(|error| {
                        Failure::Usage(format!("{source} cannot be read: {error}"))
                    })?,
                    source,
                )
            }
            None => match env::var_os(KEY_VARIABLE).filter(|key| !key.is_empty()) {
                Some(key) => (key.into_encoded_bytes(), KEY_VARIABLE.to_owned()),
                None => return Ok(None),
            },
        };
        let key = without_line_end(&text);
        if key.is_empty() {
            return Err(Failure::Usage(format!("{source} contains no key")));
        }
        Ok(Some(DigestKey::keyed(key)))
    }
}

/// Reads a secret: on a terminal without echo, else the next line of standard input.
fn ask(label: &str) -> Result<Vec<u8>, Failure> {
    let unread =
        |error: io::Error| Failure::Usage(format!("cannot read the secret {label}: {error}"));
    if io::stdin().is_terminal() {
        let typed = rpassword::prompt_password(format!("{label} (not shown): "));
        return typed.map(String::into_bytes).map_err(unread);
    }
    let mut line = Vec::new();
    io::stdin().lock().take(MAX_SECRET).read_until(b'\n', &mut line).map_err(unread)?;
    let secret = without_line_end(&line).to_vec();
    if secret.is_empty() {
        return Err(Failure::Usage(format!(
            "the secret {label} is missing: write it as a line to standard input, or run this on a terminal"
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
    fn only_the_line_end_is_removed_from_a_secret() {
        for (text, secret) in
            [("a b \n", "a b "), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a", "a"), ("\n", "")]
        {
            assert_eq!(without_line_end(text.as_bytes()), secret.as_bytes());
        }
    }
}
