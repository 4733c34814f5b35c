//! Changes to the configuration under test, for
//! [`EnvoyOptions::edit`](crate::envoy::EnvoyOptions::edit).
//!
//! [`snippet`] applies what users copy from `envoy/` where its comments say. The other changes are
//! for tests only.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::{
    envoy::{self, Form, form},
    paths, yaml,
};

/// A change to a whole configuration.
pub type ConfigEdit = Box<dyn Fn(&mut Value) -> Result<()>>;

/// Inserts the parts of a file of `envoy/` where they belong, by their names.
///
/// # Errors
/// When there is no such file, or it has a part that belongs nowhere in the configuration.
pub fn snippet(name: &str) -> Result<ConfigEdit> {
    parts(yaml::read(&paths::root().join("envoy").join(name))?)
}

/// The same, without the filter's configuration: for tests that have a document of their own.
///
/// # Errors
/// When there is no such file, or it has a part that belongs nowhere in the configuration.
pub fn snippet_around(name: &str) -> Result<ConfigEdit> {
    let mut file = yaml::read(&paths::root().join("envoy").join(name))?;
    file.as_object_mut().context("not an object")?.remove("configuration");
    parts(file)
}

fn parts(file: Value) -> Result<ConfigEdit> {
    let Value::Object(parts) = file else { bail!("a snippet is an object of parts") };
    let known = [
        "transport_socket",
        "http_filters",
        "route_config",
        "access_log",
        "stats_config",
        "configuration",
    ];
    if let Some(other) = parts.keys().find(|key| !known.contains(&key.as_str())) {
        bail!("where does {other} belong?");
    }
    Ok(Box::new(move |config| parts.iter().try_for_each(|(key, part)| insert(config, key, part))))
}

fn insert(config: &mut Value, key: &str, part: &Value) -> Result<()> {
    let into = match key {
        // Before all existing filters.
        "http_filters" => {
            let filters = yaml::list(envoy::manager(config)?, key)?;
            filters.splice(0..0, part.as_array().context("no list")?.clone());
            return Ok(());
        }
        "configuration" => {
            let document = envoy::document(config)?.as_object_mut().context("no document")?;
            document.extend(part.as_object().context("no object")?.clone());
            return Ok(());
        }
        "transport_socket" => yaml::at(config, "/static_resources/listeners/0/filter_chains/0")?,
        "stats_config" => config,
        _ => envoy::manager(config)?,
    };
    into.as_object_mut().context("no object")?.insert(key.to_owned(), part.clone());
    Ok(())
}

/// Makes the store's cluster avoid a dead store, as in `quota_store_several.yaml`. The endpoints
/// stay.
///
/// # Errors
/// When there is no such file, or no cluster of the store.
pub fn several_stores(config: &mut Value) -> Result<()> {
    let mut file = yaml::read(&paths::root().join("envoy").join("quota_store_several.yaml"))?;
    let several = yaml::named(&mut file, "quota_store")?;
    let clusters = yaml::at(config, "/static_resources/clusters")?;
    let store = yaml::named(clusters, "quota_store")?;
    let endpoints = yaml::at(store, "/load_assignment")?.clone();
    *store = several.clone();
    *yaml::at(store, "/load_assignment")? = endpoints;
    Ok(())
}

/// Trusts what so many proxies in front write into `X-Forwarded-For`. With 1, a client's address is
/// its last entry there.
pub fn trusted_hops(hops: u32) -> impl Fn(&mut Value) -> Result<()> {
    move |config| set(envoy::manager(config)?, "xff_num_trusted_hops", json!(hops))
}

/// Allows request headers of so many KiB in total.
pub fn header_limit(kib: u32) -> impl Fn(&mut Value) -> Result<()> {
    move |config| set(envoy::manager(config)?, "max_request_headers_kb", json!(kib))
}

/// Leaves paths as clients send them.
///
/// # Errors
/// When the configuration has no connection manager.
pub fn raw_paths(config: &mut Value) -> Result<()> {
    let manager = envoy::manager(config)?;
    set(manager, "normalize_path", json!(false))?;
    set(manager, "merge_slashes", json!(false))?;
    set(manager, "path_with_escaped_slashes_action", json!("KEEP_UNCHANGED"))
}

/// Speaks HTTP/2 to the upstream, so that trailers get through.
///
/// # Errors
/// When the configuration has no cluster of the upstream.
pub fn http2_upstream(config: &mut Value) -> Result<()> {
    let clusters = yaml::at(config, "/static_resources/clusters")?;
    let options = json!({"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}}
    }});
    set(yaml::named(clusters, "upstream")?, "typed_extension_protocol_options", options)
}

/// Lets clients speak WebSocket.
///
/// # Errors
/// When the configuration has no connection manager.
pub fn websocket(config: &mut Value) -> Result<()> {
    set(envoy::manager(config)?, "upgrade_configs", json!([{"upgrade_type": "websocket"}]))
}

/// Adds routes of these names for these path prefixes before the existing one; all lead to the
/// upstream.
pub fn routes(routes: &[(&str, &str)]) -> impl Fn(&mut Value) -> Result<()> + use<> {
    let one = |(name, prefix): &(&str, &str)| json!({"name": name, "match": {"prefix": prefix}, "route": {"cluster": "upstream"}});
    let new: Vec<Value> = routes.iter().map(one).collect();
    move |config| {
        let host = yaml::at(envoy::manager(config)?, "/route_config/virtual_hosts/0")?;
        yaml::list(host, "routes")?.splice(0..0, new.clone());
        Ok(())
    }
}

/// Ends streams of the first route that are idle for so long.
pub fn idle_timeout(duration: &'static str) -> impl Fn(&mut Value) -> Result<()> {
    move |config| {
        let route = "/route_config/virtual_hosts/0/routes/0/route";
        set(yaml::at(envoy::manager(config)?, route)?, "idle_timeout", json!(duration))
    }
}

/// Gives responses of the first route so long to end; `0s` is no bound.
pub fn route_timeout(duration: &'static str) -> impl Fn(&mut Value) -> Result<()> + Copy {
    move |config| {
        let route = "/route_config/virtual_hosts/0/routes/0/route";
        set(yaml::at(envoy::manager(config)?, route)?, "timeout", json!(duration))
    }
}

/// Adds this HTTP filter right before the filter under test.
pub fn before_filter(filter: Value) -> impl Fn(&mut Value) -> Result<()> {
    move |config| {
        let filters = yaml::list(envoy::manager(config)?, "http_filters")?;
        let index = envoy::position(filters)?;
        filters.insert(index, filter.clone());
        Ok(())
    }
}

/// Gives every request this dynamic metadata, as a filter before this one would.
pub fn metadata(namespace: &str, value: Value) -> impl Fn(&mut Value) -> Result<()> + use<> {
    let filter = json!({
        "name": "envoy.filters.http.set_metadata",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
            "metadata": [{"metadata_namespace": namespace, "value": value}]
        }
    });
    metadata_from(filter, namespace)
}

/// Adds this filter, which writes metadata, and what the native module needs to read them.
fn metadata_from(filter: Value, namespace: &str) -> impl Fn(&mut Value) -> Result<()> + use<> {
    let as_text = form::metadata_as_text(namespace);
    move |config| {
        before_filter(filter.clone())(config)?;
        if form::of(config)? == Form::Native {
            before_filter(as_text.clone())(config)?;
        }
        Ok(())
    }
}

/// Copies a request header into the dynamic metadata `key`, as `STRING` or `NUMBER`.
pub fn metadata_from_header(
    header: &str,
    namespace: &str,
    key: &str,
    kind: &str,
) -> impl Fn(&mut Value) -> Result<()> + use<> {
    let filter = json!({
        "name": "envoy.filters.http.header_to_metadata",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
            "request_rules": [{
                "header": header,
                "on_header_present": {"metadata_namespace": namespace, "key": key, "type": kind}
            }]
        }
    });
    metadata_from(filter, namespace)
}

/// Adds a second issuer, [`jwt::OTHER`](crate::jwt::OTHER), beside that of the shipped
/// configuration. Its tokens come in the header `x-other-token`, and their claims are under the key
/// `other`.
///
/// # Errors
/// When the configuration has no `jwt_authn`.
pub fn second_issuer(config: &mut Value) -> Result<()> {
    let issuer = &crate::jwt::OTHER;
    let filters = yaml::at(envoy::manager(config)?, "/http_filters")?;
    let jwt = yaml::at(yaml::named(filters, "envoy.filters.http.jwt_authn")?, "/typed_config")?;
    let provider = json!({
        "issuer": issuer.name,
        "forward": true,
        "from_headers": [{"name": "x-other-token"}],
        "payload_in_metadata": "other",
        "local_jwks": {"inline_string": issuer.jwks()}
    });
    set(yaml::at(jwt, "/providers")?, "other", provider)?;
    let either = |name: &str| json!({"requires_any": {"requirements": [{"provider_name": name}, {"allow_missing": {}}]}});
    let both = json!({"requires_all": {"requirements": [either("demo"), either("other")]}});
    *yaml::at(jwt, "/rules/0/requires")? = both;
    Ok(())
}

fn set(object: &mut Value, key: &str, value: Value) -> Result<()> {
    object.as_object_mut().context("not an object")?.insert(key.to_owned(), value);
    Ok(())
}
