//! Who operates the store, besides those with a token, and the audit log of what they do.

use std::net::IpAddr;
use std::path::PathBuf;

use hyper::header::HeaderName;
use ipnet::IpNet;
use quotagate_control::{App, AuditLog, TrustedProxy};

#[derive(clap::Args)]
pub(super) struct OperatorArgs {
    /// A file to which a line of JSON is appended for each change, each refused try, and each dial
    /// or override that has ended; - is standard error
    #[arg(long, env = "QUOTAGATE_AUDIT", value_name = "FILE")]
    audit: Option<PathBuf>,
    /// The header in which a proxy in front of the admin address names the person, such as
    /// x-forwarded-email; needs --auth-from, and lines group:NAME ROLE DOMAINS in
    /// --admin-token-file
    #[arg(
        long,
        env = "QUOTAGATE_AUTH_HEADER",
        value_name = "NAME",
        requires_all = ["auth_from", "admin_token_file"]
    )]
    auth_header: Option<HeaderName>,
    /// The header in which that proxy names the person's groups, separated by commas
    #[arg(
        long,
        env = "QUOTAGATE_AUTH_GROUPS_HEADER",
        default_value = "x-forwarded-groups",
        value_name = "NAME"
    )]
    auth_groups_header: HeaderName,
    /// The addresses of that proxy, such as 127.0.0.1 or 10.0.0.0/24; repeatable, or separated by
    /// commas. From others, its headers count for nothing
    #[arg(
        long,
        env = "QUOTAGATE_AUTH_FROM",
        value_name = "ADDR",
        value_delimiter = ',',
        value_parser = network
    )]
    auth_from: Vec<IpNet>,
}

fn network(text: &str) -> Result<IpNet, &'static str> {
    let address = text.parse::<IpAddr>().ok().map(IpNet::from);
    let network = address.or_else(|| text.parse().ok());
    network.ok_or("must be an IP address or a network, such as 10.0.0.0/24")
}

impl OperatorArgs {
    /// Sets this of an app.
    ///
    /// # Errors
    /// One sentence when the audit log cannot be written.
    pub(super) fn apply(self, app: App) -> Result<App, String> {
        let open = |path: PathBuf| {
            AuditLog::open(&path)
                .map_err(|error| format!("--audit: {} cannot be written: {error}", path.display()))
        };
        let audit = self.audit.map(open).transpose()?;
        let proxy = self.auth_header.map(|header| TrustedProxy {
            header,
            groups: self.auth_groups_header,
            from: self.auth_from,
        });
        Ok(app.audit(audit).proxy(proxy))
    }
}
