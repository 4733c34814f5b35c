//! The two Lua scripts in Redis: one counts, the other one serves operators.

mod answer;
mod operation;

use std::sync::LazyLock;

use redis::Cmd;

pub use self::answer::{Rejection, ScriptAnswer, lacks_rights, refuses_all, unexpected, whole};
pub use self::operation::{
    MAX_OPERATIONS, Operation, OverrideSource, ScriptCall, counter_key, override_key, quota_key,
};

/// Reserves and refunds units of counters.
pub static COUNTER: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("counter.lua")));

/// Reads and changes what operators see and change.
pub static CONTROL: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("control.lua")));

/// A script and its digest.
pub struct Script {
    source: &'static str,
    digest: String,
}

/// How a command names a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// By its digest.
    Digest,
    /// By its whole text, which also loads it.
    Text,
}

impl Script {
    fn new(source: &'static str) -> Self {
        Self { source, digest: sha1_smol::Sha1::from(source).digest().to_string() }
    }

    /// Begins a command that calls the script. The number of keys, the keys and the arguments
    /// follow.
    pub fn call(&self, cmd: &mut Cmd, form: Form) {
        match form {
            Form::Digest => cmd.arg("EVALSHA").arg(&self.digest),
            Form::Text => cmd.arg("EVAL").arg(self.source),
        };
    }

    /// The command that loads the script.
    pub fn load(&self) -> Cmd {
        let mut load = Cmd::new();
        load.arg("SCRIPT").arg("LOAD").arg(self.source);
        load
    }
}
