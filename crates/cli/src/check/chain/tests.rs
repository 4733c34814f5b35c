//! Each chain that makes policies blind gets one warning, and its repair none.

use std::fs;
use std::path::Path;

use crate::check::check;

/// A shipped configuration, which has no warning.
fn shipped(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join("envoy").join(name)).unwrap()
}

/// The shipped configuration with this change, which has to change it.
fn changed(name: &str, old: &str, new: &str) -> String {
    let text = shipped(name);
    let changed = text.replace(old, new);
    assert_ne!(text, changed, "{old}");
    changed
}

/// The only warning of a configuration whose documents are valid: its path without what leads to
/// the HTTP filters, and its text.
fn warning(text: &str) -> String {
    let found = check("f", text).lines();
    let [one] = &found[..] else { panic!("one warning: {found:#?}") };
    let (_, one) = one.split_once(": warning: ").unwrap();
    one.rsplit_once("typed_config.http_filters").map_or(one, |(_, rest)| rest).to_owned()
}

fn assert_warns(text: &str, begin: &str, remedy: &str) {
    let found = warning(text);
    assert!(found.starts_with(begin) && found.contains(remedy), "{found}");
}

/// The text of a shipped configuration with one of its HTTP filters moved before another one.
fn moved(name: &str, filter: &str, before: &str) -> String {
    let text = shipped(name);
    let entry = |name: &str| format!("                  - name: {name}\n");
    let start = text.find(&entry(filter)).unwrap();
    let end = start
        + 1
        + text[start + 1..]
            .find("\n                  - name: ")
            .map(|at| at + 1)
            .unwrap_or_default();
    let (block, rest) =
        (text[start..end].to_owned(), format!("{}{}", &text[..start], &text[end..]));
    rest.replacen(&entry(before), &format!("{block}{}", entry(before)), 1)
}

/// An HTTP filter right before the entry of another one.
fn with(name: &str, filter: &str, before: &str) -> String {
    let old = format!("                  - name: {before}\n");
    let new = format!(
        "                  - name: any-name\n                    typed_config:\n                      \
         \"@type\": type.googleapis.com/envoy.extensions.filters.http.{filter}\n{old}"
    );
    changed(name, &old, &new)
}

const JWT: &str = "envoy.filters.http.jwt_authn";
const ROUTER: &str = "envoy.filters.http.router";
const WASM: &str = "envoy.filters.http.wasm";
const NATIVE: &str = "envoy.filters.http.dynamic_modules";

#[test]
fn token_that_keeps_no_payload_is_found_at_its_provider() {
    for name in ["envoy.yaml", "native.yaml"] {
        let line = "                          payload_in_metadata: jwt_payload\n";
        assert_warns(
            &changed(name, line, ""),
            "[0].typed_config.providers.demo: policies read claims, but this provider keeps none",
            "write `payload_in_metadata: jwt_payload`",
        );
    }
}

#[test]
fn provider_that_keeps_nothing_is_found_although_another_keeps_the_payload() {
    let demo = "                        demo:\n";
    let silent = changed(
        "envoy.yaml",
        demo,
        &format!("                        other: {{issuer: other, local_jwks: {{}}}}\n{demo}"),
    );
    assert_warns(
        &silent,
        "[0].typed_config.providers.other: policies read claims, but this provider keeps none",
        "write `payload_in_metadata: jwt_payload`, or any other name if no policy is meant to count its tokens",
    );
}

#[test]
fn token_that_keeps_its_payload_under_another_key_is_found() {
    let other = changed("envoy.yaml", "payload_in_metadata: jwt_payload", "payload_in_metadata: x");
    assert_warns(
        &other,
        "[1]: policies read claims under `jwt_payload`",
        "write them under `x`: name one of these as `payload`",
    );
    let both = other.replace("jwt: {claim: sub}", "jwt: {claim: sub, payload: x}");
    assert_eq!(check("f", &both).lines(), Vec::<String>::new());
}

#[test]
fn claims_that_nothing_verified_before_are_found() {
    assert_warns(
        &moved("envoy.yaml", WASM, JWT),
        "[0]: runs before jwt_authn",
        "move it behind jwt_authn",
    );
    let none = changed("envoy.yaml", "jwt_authn", "buffer");
    assert_warns(&none, "[1]: its policies read claims", "add jwt_authn");
    let unread = none.replace("- jwt: {claim: sub}", "- peer: {san: uri}");
    assert_eq!(check("f", &unread).lines(), Vec::<String>::new());
}

#[test]
fn native_module_needs_a_copy_of_nested_metadata() {
    let key = "quotagate.metadata.envoy.filters.http.jwt_authn";
    let missing = changed("native.yaml", key, "other");
    assert_warns(&missing, "[2]: the native module reads claims", &format!("`object_key: {key}`"));
    let script = with("native.yaml", "lua.v3.Lua", NATIVE);
    let script = script.replacen(
        "http.lua.v3.Lua\n",
        "http.lua.v3.Lua\n                      default_source_code: {inline_string: 'set(\"quotagate.metadata\", \"envoy.filters.http.jwt_authn\")'}\n",
        1,
    );
    let scripted = script.replace(&format!("object_key: {key}"), "object_key: other");
    assert_ne!(script, scripted);
    assert_eq!(check("f", &scripted).lines(), Vec::<String>::new());
    assert_warns(
        &moved("native.yaml", "envoy.filters.http.set_filter_state", JWT),
        "[0]: runs before jwt_authn, so there are no claims yet to copy",
        "move it behind jwt_authn",
    );
    let nested = "- metadata: {filter: com.example, path: [user, id]}";
    let other = changed("native.yaml", "- jwt: {claim: sub}", nested);
    assert_warns(&other, "[2]: ", "`object_key: quotagate.metadata.com.example`");
    let flat = other.replace("path: [user, id]", "path: [user]");
    assert_eq!(check("f", &flat).lines(), Vec::<String>::new());
    let wasm = changed("envoy.yaml", "- jwt: {claim: sub}", nested);
    assert_eq!(check("f", &wasm).lines(), Vec::<String>::new());
}

#[test]
fn module_of_envoy_gateway_needs_a_script_that_copies_claims() {
    let without = changed("gateway/native.yaml", "quotagate.metadata", "other");
    assert_warns(&without, "spec.dynamicModule: the native module reads claims", "add `lua`");
}

#[test]
fn filters_in_the_wrong_place_are_found() {
    let cache = with("envoy.yaml", "cache.v3.CacheConfig", WASM);
    assert_warns(&cache, "[1]: filters behind a cache do not run", "move quotagate before it");
    let behind = with("envoy.yaml", "cache.v3.CacheConfig", ROUTER);
    assert_eq!(check("f", &behind).lines(), Vec::<String>::new());
    let on_demand = with("envoy.yaml", "on_demand.v3.OnDemand", ROUTER);
    assert_warns(&on_demand, "[2]: starts a request anew", "move quotagate behind it");
    let before = with("envoy.yaml", "on_demand.v3.OnDemand", WASM);
    assert_eq!(check("f", &before).lines(), Vec::<String>::new());
    let router = with("envoy.yaml", "router.v3.Router", WASM);
    assert_warns(&router, "[1]: quotagate stands behind the router", "move it before");
}

#[test]
fn deprecated_field_of_a_route_is_found() {
    let route = "                          route: {cluster: upstream}\n";
    let own = |field: &str| {
        let kind = "type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilterPerRoute";
        let config = format!(
            "                          typed_per_filter_config: {{x: {{'@type': {kind}, \
             {field}: quotagate, filter_config: {{disabled: true}}}}}}\n"
        );
        changed("native.yaml", route, &format!("{route}{config}"))
    };
    let found = warning(&own("per_route_config_name"));
    let end = "per_route_config_name: Envoy deprecates this field: write filter_name";
    assert!(found.ends_with(end), "{found}");
    assert_eq!(check("f", &own("filter_name")).lines(), Vec::<String>::new());
}

/// A configuration whose policy settles by a trailer, with these fields of the upstream's cluster.
fn settled_by_trailer(cluster: &str) -> String {
    let text = changed(
        "native.yaml",
        "                              quota: 5\n",
        "                              quota: 5\n                              cost: {reserve: 1, settle: [{response_trailer: x-cost}]}\n",
    );
    let at = "    - name: upstream\n      type";
    assert!(text.contains(at));
    text.replace(at, &format!("    - name: upstream\n{cluster}      type"))
}

fn options(protocols: &str) -> String {
    let name = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    format!(
        "      typed_extension_protocol_options: {{{name}: {{'@type': type.googleapis.com/{name}, {protocols}}}}}\n"
    )
}

#[test]
fn upstream_that_loses_trailers_is_found_if_a_policy_settles_by_one() {
    for (cluster, path) in [
        (String::new(), "static_resources.clusters[0]: "),
        (
            options("explicit_http_config: {http_protocol_options: {}}"),
            "explicit_http_config.http_protocol_options: ",
        ),
        (options("use_downstream_protocol_config: {http2_protocol_options: {}}"), "config: "),
    ] {
        let found = warning(&settled_by_trailer(&cluster));
        let (before, text) = found.split_once("policies settle by a trailer").unwrap();
        assert!(before.ends_with(path) && text.contains("`enable_trailers: true`"), "{found}");
    }
    for cluster in [
        options("explicit_http_config: {http_protocol_options: {enable_trailers: true}}"),
        options("explicit_http_config: {http2_protocol_options: {}}"),
        options("auto_config: {http_protocol_options: {enable_trailers: true}}"),
        "      http2_protocol_options: {}\n".to_owned(),
    ] {
        assert_eq!(check("f", &settled_by_trailer(&cluster)).lines(), Vec::<String>::new());
    }
    // Only the clusters that the routes name.
    let other = settled_by_trailer("").replace("{cluster: upstream}", "{cluster: elsewhere}");
    assert_eq!(check("f", &other).lines(), Vec::<String>::new());
    let mirrored = "{cluster: elsewhere, request_mirror_policies: [{cluster: upstream}]}";
    let mirrored = settled_by_trailer("").replace("{cluster: upstream}", mirrored);
    assert_eq!(check("f", &mirrored).lines(), Vec::<String>::new());
    let weighted = "{weighted_clusters: {clusters: [{name: upstream, weight: 1}]}}";
    let weighted = settled_by_trailer("").replace("{cluster: upstream}", weighted);
    assert!(warning(&weighted).starts_with("static_resources.clusters[0]: "));
}

#[test]
fn log_field_that_the_document_does_not_list_is_found_at_the_access_log() {
    let manager = "                stat_prefix: ingress\n";
    let format =
        "%FILTER_STATE(wasm.quotagate.decision:PLAIN)% %FILTER_STATE(wasm.quotagate.used)%";
    let log = format!("                access_log: [{{format: \"{format}\"}}]\n");
    let logging = changed("envoy.yaml", manager, &format!("{manager}{log}"));
    let found = warning(&logging);
    assert!(found.contains("].typed_config.access_log: reads fields"), "{found}");
    assert!(found.ends_with("add `decision`, `used` to the document's access_log"), "{found}");

    let domain = "                            domain: shop\n";
    let fields = "                            access_log: [decision, used]\n";
    let listed = logging.replacen(domain, &format!("{domain}{fields}"), 1);
    assert_ne!(listed, logging);
    assert_eq!(check("f", &listed).lines().len(), 0);

    // Another filter of the chain writes them.
    let start = listed.find("                  - name: envoy.filters.http.wasm\n").unwrap();
    let end = listed.find("                  - name: envoy.filters.http.router\n").unwrap();
    let second = listed[start..end].replace(fields, "");
    let two = format!("{}{second}{}", &listed[..start], &listed[start..]);
    assert_eq!(check("f", &two).lines(), Vec::<String>::new());
}

#[test]
fn header_that_an_upstream_reads_by_another_name_is_found() {
    let option = "                common_http_protocol_options:\n                  # Some upstreams read \
                  x_user_name as x-user-name, and no policy does.\n                  \
                  headers_with_underscores_action: REJECT_REQUEST\n";
    let found = warning(&changed("examples/login.yaml", option, ""));
    assert!(found.contains("the header x-user-name"), "{found}");
    assert!(found.contains("take x_user_name for the same header"), "{found}");
    let allowed = changed("examples/login.yaml", "REJECT_REQUEST", "ALLOW");
    assert_eq!(warning(&allowed), found);
    let dropped = changed("examples/login.yaml", "REJECT_REQUEST", "DROP_HEADER");
    assert_eq!(check("f", &dropped).lines(), Vec::<String>::new());
    let plain = changed("examples/login.yaml", "name: x-user-name", "name: user");
    let plain = plain.replace(option, "");
    assert_eq!(check("f", &plain).lines(), Vec::<String>::new());
}

#[test]
fn document_that_reads_bodies_needs_the_larger_filter() {
    let fault = |text: &str| {
        let found = check("f", text).lines();
        let [one] = &found[..] else { panic!("one fault: {found:#?}") };
        assert!(!one.contains("warning"), "{one}");
        one.clone()
    };
    let local = changed("examples/ai-gateway.yaml", "quotagate-bodies.wasm", "quotagate.wasm");
    let found = fault(&local);
    assert!(found.contains("vm_config.code.local.filename: quotagate.wasm refuses"), "{found}");
    assert!(found.ends_with("name quotagate-bodies.wasm"), "{found}");
    // The id of a VM names no program.
    let id = changed("examples/ai-gateway.yaml", "vm_id: quotagate", "vm_id: quotagate-filter");
    assert_eq!(check("f", &id).lines(), Vec::<String>::new());
    for (file, path) in [
        ("istio/wasmplugin.yaml", "spec.url"),
        ("istio/trafficextension.yaml", "spec.wasm.url"),
        ("gateway/quotas.yaml", "spec.wasm[0].code.image.url"),
    ] {
        let plain = shipped(file);
        let line = plain.lines().find(|line| line.ends_with(" window: 1m")).unwrap();
        let indent = &line[..line.len() - "window: 1m".len()];
        let cost = format!("{line}\n{indent}cost: {{reserve: 9, settle: [{{usage: total}}]}}");
        let text = plain.replace(line, &cost);
        let found = fault(&text);
        assert!(found.contains(&format!("{path}: quotagate-filter refuses")), "{file}: {found}");
        let larger = text.replace("quotagate-filter:", "quotagate-filter-bodies:");
        assert_eq!(check("f", &larger).lines(), Vec::<String>::new(), "{file}");
    }
}
