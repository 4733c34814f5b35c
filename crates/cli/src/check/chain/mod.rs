//! The filter chain around a policy document: what in it makes the policies blind, or counts
//! nothing, although the document itself is valid.

pub(super) mod program;
mod trailers;
mod walk;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use quotagate_quota::config::LogField;

use super::report::{Finding, Severity};
use super::yaml::{Node, Tree};
use walk::At;

/// The namespace in which `jwt_authn` writes what it has verified.
const JWT_AUTHN: &str = "envoy.filters.http.jwt_authn";
/// The key of a payload that documents name if they name none.
const DEFAULT_PAYLOAD: &str = "jwt_payload";
/// Where the native module reads copies of metadata.
const COPIES: &str = "quotagate.metadata";

/// What a policy document needs of the filters around it.
#[derive(Debug, Default)]
pub(super) struct Needs {
    /// The payloads of verified tokens.
    payloads: BTreeSet<String>,
    /// The namespaces of metadata below whose first level it reads, that of tokens among them.
    nested: BTreeSet<String>,
    /// Whether a policy settles by a trailer of the response.
    trailers: bool,
    /// Whether a policy reads bodies.
    bodies: bool,
    /// A header with a hyphen in its name that an identity or a condition reads.
    hyphenated: Option<String>,
    /// The cluster of its store.
    store: Option<String>,
    /// The fields that it writes for access logs.
    logged: BTreeSet<String>,
}

/// The HTTP filters of a connection manager with one of ours among them.
struct Chain<'n> {
    manager: At<'n>,
    before: Vec<At<'n>>,
    ours: At<'n>,
    after: Vec<At<'n>>,
    needs: Needs,
}

/// Warnings about what stands around these documents, each given by its path.
pub(super) fn warnings(root: &Node, documents: Vec<(&str, Needs)>) -> Vec<Finding> {
    let root = At::root(root);
    let mut found = Vec::new();
    root.visit(&mut |at| deprecated(at, &mut found));
    // A route's document writes the fields of its requests instead of the listener's.
    let logged: Vec<_> = documents.iter().flat_map(|(_, needs)| &needs.logged).cloned().collect();
    for (path, needs) in documents {
        policy_of_gateway(&root, path, &needs, &mut found);
        if let Some(chain) = Chain::around(&root, path, needs) {
            chain.order(&mut found);
            chain.tokens(&mut found);
            chain.underscores(&mut found);
            chain.copies(&mut found);
            chain.log_fields(&logged, &mut found);
            if chain.needs.trailers {
                trailers::check(&root, &chain, &mut found);
            }
        }
    }
    found
}

fn warn(found: &mut Vec<Finding>, at: &At<'_>, message: impl Into<String>) {
    let warning = Finding {
        severity: Severity::Warning,
        path: Some(at.path.clone()),
        ..Finding::of_file(Some(at.node.referenced.into()), message)
    };
    // Two documents may share a chain.
    if !found.contains(&warning) {
        found.push(warning);
    }
}

impl Needs {
    /// Those of this document.
    pub(super) fn of(document: &Node) -> Self {
        let mut needs = Self::default();
        let store = document.value.get("store").and_then(|store| store.value.get("cluster"));
        needs.store = store.and_then(|cluster| cluster.value.text()).map(str::to_owned);
        let root = At::root(document);
        let fields = root.get("access_log").map(|fields| fields.elements()).unwrap_or_default();
        needs.logged = fields.iter().filter_map(At::text).map(str::to_owned).collect();
        root.visit(&mut |at| needs.see(at));
        needs
    }

    fn see(&mut self, at: &At<'_>) {
        if let Some(jwt) = at.get("jwt")
            && (jwt.get("claim").is_some() || jwt.get("claims").is_some())
        {
            let payload = jwt.get("payload").and_then(|payload| payload.text());
            self.payloads.insert(payload.unwrap_or(DEFAULT_PAYLOAD).to_owned());
            self.nested.insert(JWT_AUTHN.to_owned());
        }
        // `settle` reads the metadata of the response, which no copy holds.
        if let Some(metadata) = at.get("metadata").filter(|_| !at.path.contains(".cost.settle["))
            && let Some(filter) = metadata.get("filter").and_then(|filter| filter.text())
            && let Some(Tree::List(names)) = metadata.get("path").map(|path| &path.node.value)
            && names.len() > 1
        {
            self.nested.insert(filter.to_owned());
            let payload = names.first().and_then(|name| name.value.text());
            self.payloads.extend(payload.filter(|_| filter == JWT_AUTHN).map(str::to_owned));
        }
        let header = if at.path.starts_with("identities") {
            at.get("header")
        } else {
            at.path.contains(".headers[").then(|| at.clone())
        };
        let name = header.and_then(|header| header.get("name")?.text());
        if let Some(name) = name.filter(|name| name.contains('-')) {
            self.hyphenated.get_or_insert_with(|| name.to_owned());
        }
        self.trailers |= at.get("response_trailer").is_some();
        self.bodies |= at.path.contains(".cost.settle[") && at.get("usage").is_some()
            || at.path.ends_with(".cost.reserve") && at.get("request_json").is_some();
    }
}

impl<'n> Chain<'n> {
    /// The chain whose filter holds the document at `path`.
    fn around(root: &At<'n>, path: &str, needs: Needs) -> Option<Self> {
        let mut managers = Vec::new();
        root.visit(&mut |at| {
            // In a cluster, the filters of the connection manager have run before.
            if !at.is_of("HttpProtocolOptions") {
                managers.extend(at.get("http_filters").map(|filters| (at.clone(), filters)));
            }
        });
        let (manager, mut before, after) =
            managers.into_iter().find_map(|(manager, filters)| {
                let mut before = filters.elements();
                let index = before.iter().position(|filter| {
                    path.strip_prefix(&filter.path).is_some_and(|rest| rest.starts_with(['.', '[']))
                })?;
                let after = before.split_off(index + 1);
                Some((manager, before, after))
            })?;
        let ours = before.pop()?;
        Some(Self { manager, before, ours, after, needs })
    }

    /// Filters that must not run before or after ours.
    fn order(&self, found: &mut Vec<Finding>) {
        for filter in &self.before {
            if is(filter, "cache") || is(filter, "cache_v2") {
                let text = "filters behind a cache do not run for its hits, so quotagate does not \
                            count them: move quotagate before it";
                warn(found, filter, text);
            }
            if is(filter, "router") {
                let text = "quotagate stands behind the router, so it never runs: move it before \
                            the router";
                warn(found, filter, text);
            }
        }
        for filter in self.after.iter().filter(|filter| is(filter, "on_demand")) {
            let text = "starts a request anew when its route or cluster has come, so quotagate \
                        counts it twice: move quotagate behind it";
            warn(found, filter, text);
        }
    }

    /// Whether the tokens whose claims policies read are verified, and their claims kept.
    fn tokens(&self, found: &mut Vec<Finding>) {
        if self.needs.payloads.is_empty() {
            return;
        }
        let mut verifiers = self.before.iter().filter(|filter| is(filter, "jwt_authn")).peekable();
        if verifiers.peek().is_none() {
            let text = if self.after.iter().any(|filter| is(filter, "jwt_authn")) {
                "runs before jwt_authn, so no request has the claims that its policies read: move \
                 it behind jwt_authn"
            } else {
                "its policies read claims of verified tokens, but no jwt_authn runs before it, so \
                 each request counts as if it had no token: add jwt_authn"
            };
            warn(found, &self.ours, text);
            return;
        }
        let settings = verifiers.filter_map(|filter| filter.get("typed_config")?.get("providers"));
        let providers: Vec<At<'_>> = settings.flat_map(|providers| providers.members()).collect();
        let payload_of = |provider: &At<'n>| {
            provider.get("payload_in_metadata").and_then(|payload| payload.text())
        };
        let written: BTreeSet<&str> = providers.iter().filter_map(payload_of).collect();
        let needed: Vec<&str> = self.needs.payloads.iter().map(String::as_str).collect();
        for provider in providers.iter().filter(|one| payload_of(one).is_none()) {
            let text = format!(
                "policies read claims, but this provider keeps none, so its tokens name nobody: \
                 write `payload_in_metadata: {}`, or any other name if no policy is meant to count \
                 its tokens",
                needed.join("` or `")
            );
            warn(found, provider, text);
        }
        if written.is_empty() {
            return;
        }
        for payload in needed.iter().filter(|name| !written.contains(*name)) {
            let names: Vec<&str> = written.iter().copied().collect();
            let text = format!(
                "policies read claims under `{payload}`, but the providers of jwt_authn write them \
                 under `{}`: name one of these as `payload` of `jwt`, or change \
                 payload_in_metadata",
                names.join("`, `")
            );
            warn(found, &self.ours, text);
        }
    }

    /// Whether a client can write a header by a name that the filter does not take for it, and some
    /// upstreams do.
    fn underscores(&self, found: &mut Vec<Finding>) {
        let Some(name) = &self.needs.hyphenated else { return };
        let options = self.manager.get("common_http_protocol_options");
        let action = options.and_then(|options| options.get("headers_with_underscores_action"));
        if action.is_none_or(|action| action.text() == Some("ALLOW")) {
            let text = format!(
                "policies read the header {name}, and upstreams behind CGI or WSGI (PHP, Python) take \
                 {} for the same header, which no policy reads: write \
                 `headers_with_underscores_action: REJECT_REQUEST` into common_http_protocol_options",
                name.replace('-', "_")
            );
            warn(found, &self.manager, text);
        }
    }

    /// Whether the native module gets the metadata that it cannot read itself.
    fn copies(&self, found: &mut Vec<Finding>) {
        if !is(&self.ours, "dynamic_modules") {
            return;
        }
        let first_verifier = self.before.iter().position(|filter| is(filter, "jwt_authn"));
        for namespace in &self.needs.nested {
            let key = format!("{COPIES}.{namespace}");
            let copy = self.before.iter().position(|filter| {
                (is(filter, "set_filter_state") && filter.mentions(&key))
                    || (is(filter, "lua") && filter.mentions(COPIES) && filter.mentions(namespace))
            });
            match (copy, first_verifier) {
                (None, _) => warn(
                    found,
                    &self.ours,
                    format!(
                        "the native module reads claims and nested metadata of {namespace} only if \
                         a filter before it copies them, so they count as missing: add \
                         set_filter_state with `object_key: {key}`, as envoy/native.yaml does"
                    ),
                ),
                (Some(copy), Some(verifier)) if namespace == JWT_AUTHN && copy < verifier => {
                    let text = "runs before jwt_authn, so there are no claims yet to copy: move it \
                                behind jwt_authn";
                    self.before.get(copy).into_iter().for_each(|at| warn(found, at, text));
                }
                (Some(_), _) => {}
            }
        }
    }

    /// Whether the access log reads fields that are not `logged`: no document of the file lists
    /// them.
    fn log_fields(&self, logged: &[String], found: &mut Vec<Finding>) {
        let Some(log) = self.manager.get("access_log") else { return };
        let is_empty = |field: &&str| {
            let reads = |end| log.mentions(&format!("quotagate.{field}{end}"));
            !logged.iter().any(|name| name == field) && (reads(':') || reads(')'))
        };
        let empty: Vec<&str> = LogField::names().filter(is_empty).collect();
        if !empty.is_empty() {
            let text = format!(
                "reads fields that the policy document does not list, so they are always empty: \
                 add `{}` to the document's access_log",
                empty.join("`, `")
            );
            warn(found, &log, text);
        }
    }
}

/// Whether one of the HTTP filters is Envoy's filter of this name. Its name is free, its type not.
fn is(filter: &At<'_>, name: &str) -> bool {
    match filter.get("typed_config").and_then(|settings| settings.kind()) {
        Some(kind) => kind.contains(&format!(".filters.http.{name}.")),
        None => {
            filter.get("name").and_then(|name| name.text())
                == Some(&format!("envoy.filters.http.{name}"))
        }
    }
}

/// An EnvoyExtensionPolicy of Envoy Gateway whose module reads claims without a script that copies
/// them.
fn policy_of_gateway(root: &At<'_>, path: &str, needs: &Needs, found: &mut Vec<Finding>) {
    let kind = root.get("kind").and_then(|kind| kind.text());
    let Some(spec) = root.get("spec").filter(|_| kind == Some("EnvoyExtensionPolicy")) else {
        return;
    };
    let is_copied = spec.get("lua").is_some_and(|scripts| scripts.mentions(COPIES));
    if path.starts_with("spec.dynamicModule") && !needs.payloads.is_empty() && !is_copied {
        let text = "the native module reads claims only if a script copies them, so they count as \
                    missing: add `lua`, as envoy/gateway/native.yaml does";
        spec.get("dynamicModule").iter().for_each(|modules| warn(found, modules, text));
    }
}

/// Fields that Envoy has deprecated.
fn deprecated(at: &At<'_>, found: &mut Vec<Finding>) {
    if at.is_of("DynamicModuleFilterPerRoute")
        && at.mentions("quotagate")
        && let Some(name) = at.get("per_route_config_name")
    {
        warn(found, &name, "Envoy deprecates this field: write filter_name");
    }
}
