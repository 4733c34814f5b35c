//! The program that a plugin runs: the smaller Wasm filter refuses policies that read bodies.

use super::Needs;
use super::walk::At;
use crate::check::report::Finding;
use crate::check::yaml::Node;

/// The paths of a plugin's program: in Envoy, at Envoy Gateway, at Istio.
const PROGRAMS: [&[&str]; 3] = [&["vm_config", "code"], &["code"], &["url"]];

fn programs<'n>(plugin: &At<'n>) -> impl Iterator<Item = At<'n>> {
    let at = |path: &&[&str]| path.iter().try_fold(plugin.clone(), |at, name| at.get(name));
    PROGRAMS.iter().filter_map(at)
}

/// The smaller filters, by file and by image, and the larger ones.
const FILTERS: [(&str, &str); 2] =
    [("quotagate.wasm", "quotagate-bodies.wasm"), ("quotagate-filter", "quotagate-filter-bodies")];

/// The fault that the plugin around the document at `path` names a filter that will refuse it.
pub(in crate::check) fn fault(
    root: &Node,
    path: &str,
    needs: &Needs,
    document: usize,
) -> Option<Finding> {
    if !needs.bodies {
        return None;
    }
    let mut plugin = None;
    At::root(root).visit(&mut |at| {
        let leads = path.strip_prefix(&at.path).is_some_and(|rest| rest.starts_with(['.', '[']));
        if leads && programs(at).next().is_some() {
            plugin = Some(at.clone());
        }
    });
    let plugin = plugin?;
    let mut found = None;
    for program in programs(&plugin) {
        program.visit(&mut |at| {
            let file = at.text().and_then(|text| text.rsplit('/').next()).unwrap_or_default();
            let name = file.split([':', '@']).next().unwrap_or_default();
            let larger = FILTERS.iter().find(|(smaller, _)| *smaller == name);
            found =
                larger.map(|(smaller, larger)| (at.clone(), *smaller, *larger)).or(found.take());
        });
    }
    let (at, smaller, larger) = found?;
    let message = format!(
        "{smaller} refuses policies that read bodies (`usage`, `request_json`): name {larger}"
    );
    Some(Finding {
        document: Some(document),
        path: Some(at.path.clone()),
        ..Finding::of_file(Some(at.node.referenced.into()), message)
    })
}
