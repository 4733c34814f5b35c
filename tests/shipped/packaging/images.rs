//! The images of the Dockerfile and of the compose file.

use quotagate_support::{paths, tools::ENVOY_VERSION};

use super::{resolved, services, strings, text};

#[test]
fn every_image_is_pinned_or_built_here() {
    for (name, service) in services() {
        let image = &resolved(service["image"].as_str().unwrap());
        match service["build"]["target"].as_str() {
            Some(target) => {
                let file = text("Dockerfile");
                assert!(file.contains(&format!(" AS {target}\n")), "{name}: no target {target}");
            }
            None => assert!(is_pinned(image), "{name}: {image}"),
        }
    }
    let file = text("Dockerfile");
    for line in file.lines().filter_map(|line| line.strip_prefix("FROM ")) {
        let image = line.split_whitespace().next().unwrap();
        let is_stage = file.contains(&format!(" AS {image}\n"));
        assert!(image == "scratch" || is_stage || is_pinned(image), "Dockerfile: {image}");
    }
    assert!(file.contains(&format!("FROM envoyproxy/envoy:v{ENVOY_VERSION} ")));
}

/// Whether the tag contains a full version.
fn is_pinned(image: &str) -> bool {
    image
        .rsplit_once(':')
        .is_some_and(|(_, tag)| tag.matches('.').count() >= 1 && tag.contains(char::is_numeric))
}

/// The stages of the Dockerfile, and the recipe of a release, that run something.
fn stages_that_run() -> Vec<String> {
    let stages = [text("Dockerfile"), text("docker/envoy.Dockerfile")].map(|file| {
        let stages = file.split("\nFROM ").skip(1).map(str::to_owned);
        stages.filter(|stage| stage.contains("\nENTRYPOINT ")).collect::<Vec<_>>()
    });
    stages.concat()
}

#[test]
fn no_image_runs_as_root() {
    assert_eq!(stages_that_run().len(), 4);
    for stage in stages_that_run() {
        let user = stage.lines().find_map(|line| line.strip_prefix("USER ")).unwrap();
        assert!(!user.starts_with("root") && !user.starts_with('0'), "{user}");
    }
}

#[test]
fn images_need_no_shell_for_their_health() {
    for stage in stages_that_run() {
        let check = stage.lines().find(|line| line.starts_with("HEALTHCHECK ")).unwrap();
        assert!(check.contains(r#"quotagate", "health""#), "{check}");
    }
    for (name, service) in
        services().into_iter().filter(|(_, service)| service["build"].is_object())
    {
        let test = strings(&service["healthcheck"]["test"]).join(" ");
        let program = if name == "envoy" { "quotagate" } else { "/quotagate" };
        assert!(test.starts_with(&format!("CMD {program} health ")), "{name}: {test}");
    }
}

#[test]
fn the_command_is_alone_in_its_images() {
    let file = text("Dockerfile");
    let (_, stage) = file.split_once("\nFROM scratch AS command\n").unwrap();
    let stage = stage.split("\nFROM ").next().unwrap();
    let copied: Vec<&str> = stage
        .lines()
        .filter(|line| line.starts_with("COPY "))
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    assert_eq!(copied, ["/etc/ssl/certs/ca-certificates.crt", "/"]);
    assert!(!stage.contains("\nRUN "), "there is no shell");
    for name in ["store", "ratelimit"] {
        let (_, stage) = file.split_once(&format!("\nFROM command AS {name}\n")).unwrap();
        let stage = stage.split("\nFROM ").next().unwrap();
        assert!(!stage.contains("\nCOPY ") && !stage.contains("\nRUN "), "{stage}");
    }
}

#[test]
fn every_mounted_and_copied_file_exists() {
    for (name, service) in services() {
        for volume in
            strings(&service["volumes"]).into_iter().filter(|volume| volume.starts_with("./"))
        {
            let file = paths::root().join(volume.split(':').next().unwrap());
            assert!(file.is_file(), "{name}: {}", file.display());
        }
    }
    let file = text("Dockerfile");
    for line in file.lines().filter(|line| line.starts_with("COPY ") && !line.contains("--from")) {
        let source = line
            .split_whitespace()
            .find(|word| !word.starts_with("--") && *word != "COPY")
            .unwrap();
        assert!(paths::root().join(source).exists(), "{line}");
    }
}

#[test]
fn envoy_images_have_both_forms_of_the_filter_at_the_same_paths() {
    let file = text("Dockerfile");
    let (build, _) = file.split_once("\nFROM scratch AS command\n").unwrap();
    for (name, folder) in
        [(paths::FILTER, "wasm"), (paths::BODIES_FILTER, "wasm"), ("libquotagate.so", "lib")]
    {
        let copied = build.lines().any(|line| {
            line.contains(&format!("dist/{name}")) && line.contains(&format!(" /dist/{folder}/"))
        });
        assert!(copied, "{name}");
    }
    let (_, stage) = file.split_once(" AS envoy\n").unwrap();
    assert!(stage.contains("COPY --from=build /dist /opt/quotagate\n"));
    // A release's archive has the same folders, below its name.
    let recipe = text("docker/envoy.Dockerfile");
    assert!(recipe.contains(&format!("\nARG VERSION={}\n", env!("CARGO_PKG_VERSION"))));
    assert!(recipe.contains("\nADD quotagate-${VERSION}-linux-${ARCHITECTURE}.tar.gz /opt/\n"));
    assert!(recipe.contains(r#"ln -s "quotagate-$VERSION" /opt/quotagate"#));
    assert!(recipe.contains(&format!("\nFROM envoyproxy/envoy:v{ENVOY_VERSION}\n")));
    for recipe in [stage, &recipe] {
        assert!(recipe.contains("ln -s /opt/quotagate/wasm /dist"));
        assert!(recipe.contains("\nENV ENVOY_DYNAMIC_MODULES_SEARCH_PATH=/opt/quotagate/lib\n"));
    }
    // Envoy Gateway names the file, not the folder.
    let gateway = text("envoy/gateway/native.yaml");
    assert!(gateway.contains(" path: /opt/quotagate/lib/libquotagate.so\n"));
}

#[test]
fn filter_images_are_what_istio_and_envoy_gateway_read() {
    let file = text("Dockerfile");
    for (target, name) in [("filter", paths::FILTER), ("filter-bodies", paths::BODIES_FILTER)] {
        let (_, stage) = file.split_once(&format!("FROM scratch AS {target}\n")).unwrap();
        let lines: Vec<&str> = stage.lines().take_while(|line| !line.is_empty()).collect();
        assert_eq!(lines, [format!("COPY --from=build /dist/wasm/{name} /plugin.wasm")]);
    }
}
