//! What the API server refuses, and a document does not show.

use std::collections::BTreeSet;

use crate::objects::{GATEWAY_API, ObjectName};
use crate::resource::QuotaPolicySpec;

/// Whether a name is one part of a name in the document.
pub(super) fn is_label(text: &str, most: usize) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=most).contains(&text.len())
        && text.bytes().all(plain)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// What the API server refuses, and a document does not show.
pub(super) fn shape(name: &ObjectName, spec: &QuotaPolicySpec) -> Result<(), String> {
    if !is_label(&name.name, 63) || !is_label(&name.namespace, 63) {
        return Err("metadata.name: at most 63 small letters, digits and -, because names in the \
                    document contain it"
            .to_owned());
    }
    let [first, ..] = spec.target_refs.as_slice() else {
        return Err("spec.targetRefs: name a target".to_owned());
    };
    let mut known = BTreeSet::new();
    for (index, target) in spec.target_refs.iter().enumerate() {
        let at = format!("spec.targetRefs[{index}]");
        let group = if target.kind == "Service" { "" } else { GATEWAY_API };
        let kinds = ["Gateway", "HTTPRoute", "GRPCRoute", "Service"];
        if !kinds.contains(&target.kind.as_str()) || target.group != group {
            return Err(format!(
                "{at}: {}.{} is no target. Use Gateway, HTTPRoute or GRPCRoute of {GATEWAY_API}, \
                 or Service of the core group (waypoints)",
                target.kind, target.group
            ));
        }
        if target.namespace.is_some() {
            return Err(format!(
                "{at}.namespace: a QuotaPolicy applies to objects of its own namespace only. Write \
                 it into the namespace of the target"
            ));
        }
        if target.kind != first.kind {
            return Err(format!(
                "{at}.kind: all targets must be of one kind. Write a QuotaPolicy for each kind"
            ));
        }
        if target.section_name.is_some() && !["Gateway", "HTTPRoute"].contains(&&*target.kind) {
            return Err(format!(
                "{at}.sectionName: {} has no sections here: Gateway has listeners, HTTPRoute has \
                 named rules",
                target.kind
            ));
        }
        if !known.insert((&target.name, &target.section_name)) {
            return Err(format!("{at}: is named twice"));
        }
    }
    let is_identity = |name: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        (1..=64).contains(&name.len())
            && name.bytes().all(plain)
            && !["method", "host", "path", "route"].contains(&name)
    };
    if let Some(name) = spec.identities.keys().find(|name| !is_identity(name)) {
        return Err(format!(
            "spec.identities: {name} is no name of an identity: it has letters, digits and ._- and \
             is none of method, host, path, route"
        ));
    }
    let of_gateways = spec.defaults.is_some() || spec.overrides.is_some();
    if spec.policies.is_some() == of_gateways {
        return Err(
            "spec: give policies, or for a Gateway defaults and overrides, and not both".to_owned()
        );
    }
    if of_gateways && first.kind != "Gateway" {
        return Err("spec: defaults and overrides are for targets of kind Gateway: they apply to \
                    the routes below it"
            .to_owned());
    }
    Ok(())
}
