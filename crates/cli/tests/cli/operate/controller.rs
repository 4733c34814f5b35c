//! `quotagate controller --once --from`, against a real store.

use std::fs;

use serde_json::json;
use tempfile::TempDir;

use super::fleet::{Done, Fleet, command, run};

const GATEWAY: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: gateways, name: public}
spec: {gatewayClassName: eg, listeners: [{name: http, port: 80, protocol: HTTP}]}
";

fn policy(name: &str, quota: &str) -> String {
    format!(
        "\
apiVersion: quotagate.io/v1alpha1
kind: QuotaPolicy
metadata: {{namespace: gateways, name: {name}}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: public}}]
  overrides: {{policies: [{{name: all, partitionBy: [], quota: {quota}, window: 1m}}]}}
"
    )
}

/// A folder of objects, and a store.
struct Scene {
    fleet: Fleet,
    folder: TempDir,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("objects")).unwrap();
        let domain = |name: &str, gateways: &[&str]| json!({"domain": name, "gateways": gateways, "store": {"cluster": "quota_store"}});
        let config = json!({"domains": [domain("other", &["gateways/private"]), domain("shop", &["gateways/public"])]});
        fs::write(folder.path().join("config.yaml"), config.to_string()).unwrap();
        let scene = Self { fleet: Fleet::memory(), folder };
        scene.write("gateway.yaml", GATEWAY);
        scene.write("private.yaml", &GATEWAY.replace("public", "private"));
        scene.write("policy.yaml", &policy("house", "5"));
        scene
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.path().join("objects").join(name), text).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.folder.path().join("objects").join(name)).unwrap();
    }

    fn once(&self) -> Done {
        self.once_at(&self.fleet.admin())
    }

    fn once_at(&self, admin: &str) -> Done {
        let (config, objects) =
            (self.folder.path().join("config.yaml"), self.folder.path().join("objects"));
        let mut command = command(&["controller", "--once", "--admin", admin]);
        command.arg("--config").arg(config).arg("--from").arg(objects);
        run(&mut command, b"")
    }

    /// The quota of the published document, and its number.
    fn published(&self) -> (u64, u64) {
        let list = self.fleet.json(&["document", "list", "--domain", "shop"]);
        let shown = self.fleet.done(&["document", "show", "--domain", "shop"]).out;
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let quota = shown["policies"][0]["quota"].as_u64().unwrap();
        (quota, list["documents"][0]["number"].as_u64().unwrap())
    }

    /// Publishes another document.
    fn operator_publishes(&self, arguments: &[&str]) -> Done {
        let file = self.folder.path().join("document.json");
        let policy = json!({"name": "p", "partition_by": [], "quota": 77, "window": "1m"});
        let document = json!({"domain": "shop", "store": {"cluster": "c"}, "policies": [policy]});
        fs::write(&file, document.to_string()).unwrap();
        let publish = ["document", "publish", file.to_str().unwrap(), "--yes"];
        self.fleet.done(&[&publish[..], arguments].concat())
    }
}

#[test]
fn folder_is_published_once_and_again_over_what_an_operator_published() {
    let scene = Scene::new();
    let first = scene.once();
    assert!(first.status == 0 && first.err.contains("published document number 1"), "{first:?}");
    assert!(first.err.contains("no policies for domain other"), "{first:?}");
    let same = scene.once();
    assert!(same.status == 0 && same.err.contains("this very document, as number 1"), "{same:?}");
    let warned = scene.operator_publishes(&[]);
    assert!(warned.err.contains("`quotagate controller` published number 1"), "{warned:?}");
    assert_eq!(scene.published(), (77, 2));
    assert_eq!(scene.once().status, 0);
    assert_eq!(scene.published(), (5, 3));
    scene.write("second.yaml", &policy("second", "6"));
    let refused = scene.once();
    assert!(refused.status == 1 && refused.err.contains("Conflicted"), "{refused:?}");
}

#[test]
fn folder_without_policies_or_with_faults_withdraws_nothing() {
    let scene = Scene::new();
    assert_eq!(scene.once().status, 0);
    let stays = |part: &str| {
        let done = scene.once();
        assert!(done.status == 2 && done.err.contains(part), "{done:?}");
        assert_eq!(scene.published(), (5, 1));
    };
    scene.remove("policy.yaml");
    stays("holds no QuotaPolicy");
    scene.write("policy.yaml", "a: {");
    stays("must be YAML or JSON");
    scene.write("policy.yaml", &policy("house", "many"));
    stays("spec.overrides.policies[0].quota");
    // Exports that lack a Gateway, or a kind.
    scene.write("policy.yaml", &policy("house", "5"));
    scene.remove("gateway.yaml");
    stays("there is no Gateway gateways/public, which domain shop lists");
    scene.write("gateway.yaml", GATEWAY);
    let of_route = policy("routed", "5").replace("kind: Gateway", "kind: HTTPRoute");
    scene.write("routed.yaml", &of_route);
    stays("targets a HTTPRoute, and there is none");
}

#[test]
fn documents_of_another_controller_stay_until_an_operator_withdraws_them() {
    let scene = Scene::new();
    scene.operator_publishes(&["--note", "quotagate controller of cluster x: 1 policies"]);
    let refused = scene.once();
    assert!(refused.status == 1 && refused.err.contains("by another controller"), "{refused:?}");
    assert_eq!(scene.published(), (77, 1));
    scene.fleet.done(&["document", "withdraw", "--yes", "--domain", "shop"]);
    assert_eq!(scene.once().status, 0);
    assert_eq!(scene.published(), (5, 3));
    scene.operator_publishes(&["--percent", "10"]);
    let tried = scene.once();
    assert!(tried.status == 1 && tried.err.contains("document promote"), "{tried:?}");
}

#[test]
fn store_that_is_away_stops_no_domain_and_is_no_success() {
    let mut scene = Scene::new();
    let away = scene.fleet.admin();
    scene.fleet = Fleet::memory();
    scene.write("other.yaml", &policy("other", "5").replace("public", "private"));
    let done = scene.once_at(&away);
    assert_eq!(done.status, 1, "{done:?}");
    assert!(done.err.contains("domain other: cannot reach"), "{done:?}");
    assert!(done.err.contains("domain shop: cannot reach"), "{done:?}");
}
