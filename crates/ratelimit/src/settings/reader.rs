//! Reads the values of variables, as Go does.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use quotagate_quota::duration;
use quotagate_store::tls::TlsFiles;

use super::Remark;
use super::table::{Fate, VARIABLES};

/// Reads variables, and gathers what is wrong with them.
pub(super) struct VariableReader<'v> {
    set: &'v BTreeMap<String, String>,
    faults: RefCell<Vec<Remark>>,
}

impl<'v> VariableReader<'v> {
    pub(super) fn new(set: &'v BTreeMap<String, String>) -> Self {
        Self { set, faults: RefCell::default() }
    }

    /// # Errors
    /// What is wrong.
    pub(super) fn finish(self) -> Result<(), Vec<Remark>> {
        let faults = self.faults.into_inner();
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    pub(super) fn fault(&self, variable: &str, text: impl Into<String>) {
        let fault = Remark { variable: variable.to_owned(), text: text.into() };
        self.faults.borrow_mut().push(fault);
    }

    /// Finds the variables that the service cannot follow.
    pub(super) fn refuse(&self) {
        for variable in VARIABLES {
            if let Fate::Refused { unless, text } = variable.fate
                && let Some(value) = self.given(variable.name)
            {
                let is_off = unless == "false" && boolean(value) == Some(false);
                if !is_off && !value.eq_ignore_ascii_case(unless) {
                    self.fault(variable.name, text);
                }
            }
        }
    }

    /// The value of a variable that is set.
    pub(super) fn given(&self, name: &str) -> Option<&'v str> {
        self.set.get(name).map(String::as_str)
    }

    pub(super) fn text(&self, name: &str, default: &'v str) -> &'v str {
        self.given(name).unwrap_or(default)
    }

    /// A boolean; false if it is not set.
    pub(super) fn boolean(&self, name: &str) -> bool {
        let Some(value) = self.given(name) else { return false };
        boolean(value).unwrap_or_else(|| {
            self.fault(name, format!("must be true or false, is {value:?}"));
            false
        })
    }

    /// A time; zero is none.
    pub(super) fn duration(&self, name: &str, default: Duration) -> Duration {
        let Some(value) = self.given(name) else { return default };
        match duration::parse(value) {
            Ok(time) => time,
            Err(_) if value == "0" => Duration::ZERO,
            Err(error) => {
                self.fault(name, format!("{error}, is {value:?}"));
                default
            }
        }
    }

    /// A number between two others.
    pub(super) fn number<T>(&self, name: &str, default: T, bounds: RangeInclusive<T>) -> T
    where
        T: std::str::FromStr + PartialOrd + std::fmt::Display,
    {
        let Some(value) = self.given(name) else { return default };
        let number = value.parse().ok().filter(|number| bounds.contains(number));
        number.unwrap_or_else(|| {
            let (least, most) = (bounds.start(), bounds.end());
            self.fault(name, format!("must be a number from {least} to {most}, is {value:?}"));
            default
        })
    }

    /// Pairs that commas separate. The text of a fault shows no value, which may be a secret.
    pub(super) fn pairs(&self, name: &str, separator: char) -> Vec<(&'v str, &'v str)> {
        let pairs = self.text(name, "").split(',').map(str::trim).filter(|pair| !pair.is_empty());
        let split = pairs.filter_map(|pair| {
            let split = pair.split_once(separator);
            if split.is_none() {
                let text =
                    format!("must be pairs such as name{separator}value, separated by commas");
                self.fault(name, text);
            }
            split
        });
        split.collect()
    }

    /// The files of one side of TLS: its certificate, key, and what it demands of its peer.
    pub(super) fn tls(&self, [chain, key, authority, peer]: [&str; 4]) -> TlsFiles {
        let path = |name: &str| self.given(name).map(PathBuf::from);
        let own = match (path(chain), path(key)) {
            (Some(chain), Some(key)) => Some((chain, key)),
            (None, None) => None,
            (Some(_), None) => {
                self.fault(key, format!("is required beside {chain}: name the private key"));
                None
            }
            (None, Some(_)) => {
                self.fault(chain, format!("is required beside {key}: name the certificate"));
                None
            }
        };
        let peer = self.given(peer).map(str::to_owned);
        TlsFiles { own, authority: path(authority), peer }
    }

    /// An address of a host and a port.
    pub(super) fn address(&self, host: &str, port: &str, default: u16) -> String {
        let host = self.text(host, "0.0.0.0");
        let port = self.given(port).map_or(default, |value| {
            value.parse().unwrap_or_else(|_| {
                self.fault(port, format!("must be a port from 0 to 65535, is {value:?}"));
                default
            })
        });
        let is_bare_ipv6 = host.contains(':') && !host.starts_with('[');
        if is_bare_ipv6 { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// What one of these words stands for, in any case. The first stands for an absent variable.
    pub(super) fn one_of<T: Copy + Default>(&self, name: &str, words: &[(&str, T)]) -> T {
        let first = words.first().map(|(_, meaning)| *meaning).unwrap_or_default();
        let Some(value) = self.given(name) else { return first };
        let known = words.iter().find(|(word, _)| word.eq_ignore_ascii_case(value));
        known.map_or_else(
            || {
                let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                self.fault(name, format!("must be one of {}, is {value:?}", words.join(", ")));
                first
            },
            |(_, meaning)| *meaning,
        )
    }
}

pub(super) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
