//! `quotagate token`: makes tokens for operators. It needs no store.

use std::process::ExitCode;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use quotagate_store::server::{DomainScope, OperatorGrant, OperatorRole, TOKEN_MARK, digest_of};
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::json;

use crate::standard::print;

/// Random bytes in a token.
const RANDOM: usize = 32;

/// The flags of `quotagate token`.
#[derive(clap::Args)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(clap::Subcommand)]
enum TokenCommand {
    /// Make a token: print its secret, which is shown only now, and its line for the file of
    /// --admin-token-file, or of --token-file for proxies, which holds no secret
    New(NewTokenArgs),
}

#[derive(clap::Args)]
struct NewTokenArgs {
    /// Who gets it: the name that history records
    #[arg(value_parser = name)]
    name: String,
    /// call: proxies, as `store.token` of their documents; view: see; operate: also dials,
    /// overrides, reset and release; admin: also forget domains
    #[arg(long)]
    role: OperatorRole,
    /// A domain that it is for; repeatable, or separated by commas [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    domain: Vec<String>,
    /// Print secret and line as JSON
    #[arg(long)]
    json: bool,
}

fn name(text: &str) -> Result<String, String> {
    OperatorGrant::check_name(text).map(|()| text.to_owned())
}

/// Runs one of these commands.
///
/// # Errors
/// One sentence when a flag is wrong, or the system has no random bytes.
pub(crate) fn run(args: &TokenArgs) -> Result<ExitCode, String> {
    let TokenCommand::New(NewTokenArgs { name, role, domain, json }) = &args.command;
    let domains = if domain.is_empty() { "*".to_owned() } else { domain.join(",") };
    let domains: DomainScope = domains.parse().map_err(|error| format!("--domain: {error}"))?;
    let mut bytes = [0; RANDOM];
    let length = getrandom(&mut bytes, GetRandomFlags::empty());
    if length.map_err(|error| format!("cannot read random bytes: {error}"))? != RANDOM {
        return Err("the system gave too few random bytes: try again".to_owned());
    }
    let secret = format!("{TOKEN_MARK}{}", URL_SAFE_NO_PAD.encode(bytes));
    let digest: String =
        digest_of(secret.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    let line = format!("{name} {role} {domains} {digest}");
    if *json {
        return print(&format!("{}\n", json!({"secret": secret, "line": line})));
    }
    let file = if *role == OperatorRole::Call { "--token-file" } else { "--admin-token-file" };
    print(&format!(
        "The secret of {name}, which is shown only now:\n{secret}\n\n\
         The line for the file of {file}, which holds no secret:\n{line}\n"
    ))
}
