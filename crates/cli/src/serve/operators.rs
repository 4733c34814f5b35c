//! Who operates the store, besides those with a token, and the audit log of what they do.

use std::net::IpAddr;
use std::path::PathBuf;

use hyper::header::{AUTHORIZATION, COOKIE, HOST, HeaderName, PROXY_AUTHORIZATION};
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
        value_parser = header_of_proxy,
        requires_all = ["auth_from", "admin_token_file"]
    )]
    auth_header: Option<HeaderName>,
    /// The header in which that proxy names the person's groups, separated by commas
    #[arg(
        long,
        env = "QUOTAGATE_AUTH_GROUPS_HEADER",
        default_value = "x-forwarded-groups",
        value_name = "NAME",
        value_parser = header_of_proxy
    )]
    auth_groups_header: HeaderName,
    /// The addresses of that proxy, such as 127.0.0.1 or 10.0.0.0/24; repeatable, or separated by
    /// commas. From others, its headers count for nothing
    #[arg(
        long,
        env = "QUOTAGATE_AUTH_FROM",
        value_name = "ADDR",
        value_delimiter = ',',
        value_parser = network,
        requires = "auth_header"
    )]
    auth_from: Vec<IpNet>,
}

fn network(text: &str) -> Result<IpNet, &'static str> {
    let address = text.parse::<IpAddr>().ok().map(IpNet::from);
    let network: IpNet = address
        .or_else(|| text.parse().ok())
        .ok_or("must be an IP address or a network, such as 10.0.0.0/24")?;
    if network.prefix_len() == 0 {
        return Err("would trust the headers of everyone: list the addresses of the proxy");
    }
    Ok(network)
}

/// A header in which the proxy may name something.
fn header_of_proxy(text: &str) -> Result<HeaderName, String> {
    let name: HeaderName = text.parse().map_err(|_| "must be the name of a header".to_owned())?;
    if [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE, HOST].contains(&name) {
        return Err(format!(
            "{name} is a header of the client, and may hold a secret: name one that only the proxy \
             sets, such as x-forwarded-email"
        ));
    }
    Ok(name)
}

impl OperatorArgs {
    /// Sets this of an app.
    ///
    /// # Errors
    /// One sentence when the audit log cannot be written, or one header would name the person and
    /// the groups.
    pub(super) fn apply(self, app: App) -> Result<App, String> {
        let open = |path: PathBuf| {
            AuditLog::open(&path)
                .map_err(|error| format!("--audit: {} cannot be written: {error}", path.display()))
        };
        let audit = self.audit.map(open).transpose()?;
        if self.auth_header.as_ref() == Some(&self.auth_groups_header) {
            let name = self.auth_groups_header;
            return Err(format!(
                "--auth-groups-header: {name} names the person already: name another header"
            ));
        }
        let proxy = self.auth_header.map(|header| TrustedProxy {
            header,
            groups: self.auth_groups_header,
            from: self.auth_from,
        });
        Ok(app.audit(audit).proxy(proxy))
    }
}
