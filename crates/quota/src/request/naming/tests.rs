use super::*;

fn encode(typed: &str) -> String {
    let name = Name::parse(typed, Vec::new()).unwrap_or_else(|error| panic!("{typed}: {error}"));
    name.encode(&DigestKey::derived("shop"), "shop", "p")
}

fn error(typed: &str) -> String {
    Name::parse(typed, Vec::new()).unwrap_err().to_string()
}

#[test]
fn typed_names_become_encoded_keys() {
    for (typed, key) in [
        ("*", "*"),
        ("jwt.sub=alice", "jwt.sub=alice"),
        ("jwt.sub=Alice Smith", "jwt.sub=Alice%20Smith"),
        ("jwt.sub=käse", "jwt.sub=k%C3%A4se"),
        ("jwt.iss=https://a.example,jwt.sub=bob", "jwt.iss=https://a.example,jwt.sub=bob"),
        ("jwt.sub=a=b", "jwt.sub=a%3Db"),
        ("jwt.sub=100%", "jwt.sub=100%25"),
        ("jwt.sub=100%2541", "jwt.sub=100%2541"),
        ("jwt.sub=~me", "jwt.sub=%7Eme"),
        ("jwt@other.realm.tenant=x", "jwt@other.realm.tenant=x"),
        ("jwt.https://a%2Eb.c%2Cd=x", "jwt.https://a%2Eb.c%2Cd=x"),
        ("jwt.my claim=x", "jwt.my%20claim=x"),
        ("metadata.envoy%2Elb.user.name=x", "metadata.envoy%2Elb.user.name=x"),
        ("header.X-User=Alice", "header.x-user=Alice"),
        ("header.x*y.z=1", "header.x%2Ay.z=1"),
        ("cookie.SID=x", "cookie.SID=x"),
        ("query.user id=x", "query.user%20id=x"),
        ("peer.subject=CN=alice,O=Shop", "peer.subject=CN%3Dalice%2CO%3DShop"),
        ("peer.uri=spiffe://a/b", "peer.uri=spiffe://a/b"),
        ("jwt.sub=a,b,jwt.tenant=t", "jwt.sub=a%2Cb,jwt.tenant=t"),
        ("jwt.sub=a%2Cip=x", "jwt.sub=a%2Cip%3Dx"),
        ("-,ip=192.0.2.7", "-,ip=192.0.2.7"),
        ("ip=192.0.2.7,-", "ip=192.0.2.7,-"),
        ("ip=::ffff:192.0.2.7", "ip=192.0.2.7"),
        ("ip=2001:DB8::1", "ip=2001:db8::1"),
        ("ip=2001:db8:1:2:3::4/64", "ip=2001:db8:1:2::/64"),
        ("ip=192.0.2.7/24", "ip=192.0.2.0/24"),
        ("ip=2001:db8::1/128", "ip=2001:db8::1"),
        ("method=get,host=API.example.com", "method=GET,host=api.example.com"),
        ("host=a%252eb", "host=a%252eb"),
        ("path=/a//b/../c%20d?x=1", "path=/a/c%20d"),
        ("path=/login/", "path=/login"),
        ("path=/login;a", "path=/login"),
        ("path=/", "path=/"),
        ("path=/a%2520b", "path=/a%2520b"),
        ("route=search", "route=search"),
        ("sni=Shop.Example", "sni=shop.example"),
    ] {
        assert_eq!(encode(typed), key, "{typed}");
        assert_eq!(encode(key), key, "copied from a key");
    }
}

#[test]
fn long_values_become_digests_and_copied_digests_stay() {
    let long = encode(&format!("jwt.sub={}", "a".repeat(129)));
    assert!(is_digest(long.strip_prefix("jwt.sub=").unwrap()), "{long}");
    assert_eq!(encode(&long), long);
    assert_eq!(encode(&long["jwt.sub=".len()..]), &long["jwt.sub=".len()..], "a whole partition's");
    // A value that looks like one is typed with %7E, and stays a value.
    let forged = long.replace('~', "%7E");
    assert_eq!(encode(&forged), forged);
    // A digest has lower-case digits and a fixed length.
    assert_eq!(encode("jwt.sub=~AB"), "jwt.sub=%7EAB");
}

#[test]
fn a_secret_replaces_its_label() {
    let secret = |label: &str, value: &str| Secret::new(label, value.into()).unwrap();
    let key = DigestKey::keyed(b"Jefe");
    let digest = "~5bdcc146bf60754e6a042426089575c7";
    let value = "what do ya want for nothing?";
    let encode = |typed: &str, secrets: Vec<Secret>| {
        let name = Name::parse(typed, secrets)?;
        assert!(name.needs_key());
        Ok(name.encode(&key, "shop", "p"))
    };
    let in_header = || secret("header.X-API-Key", value);
    assert_eq!(encode("", vec![in_header()]), Ok(format!("header.x-api-key={digest}")));
    assert_eq!(
        encode("ip=192.0.2.7,header.x-api-key,route=a", vec![in_header()]),
        Ok(format!("ip=192.0.2.7,header.x-api-key={digest},route=a"))
    );
    assert_eq!(
        encode("", vec![in_header(), secret("cookie.sid", value)]),
        Ok(format!("header.x-api-key={digest},cookie.sid={digest}"))
    );
    assert_eq!(
        encode("ip=192.0.2.7", vec![in_header()]),
        Err(NameError::Unplaced("header.x-api-key".into()))
    );
    assert_eq!(encode("*", vec![in_header()]), Err(NameError::Unplaced("header.x-api-key".into())));
    assert_eq!(
        Secret::new("apikey", b"x".to_vec()).unwrap_err(),
        NameError::UnknownLabel("apikey".into())
    );
    assert!(Secret::new("header.x", Vec::new()).is_err());
    let authorization = |value| encode("", vec![secret("header.authorization", value)]);
    assert_eq!(authorization("bearer  K"), authorization("Bearer K"));
    let name = Name::parse("", vec![secret("header.x-api-key", "hidden")]).unwrap();
    assert!(!format!("{name:?} {key:?}").contains("hidden"), "{name:?}");
}

#[test]
fn only_digests_need_the_key() {
    for (typed, needs) in [
        ("*".to_owned(), false),
        ("jwt.sub=alice".to_owned(), false),
        (format!("jwt.sub={}", "é".repeat(64)), false),
        (format!("jwt.sub={}", "é".repeat(65)), true),
        (vec![format!("jwt.sub={}", "é".repeat(64)); 10].join(","), true),
    ] {
        assert_eq!(Name::parse(&typed, Vec::new()).unwrap().needs_key(), needs, "{typed}");
    }
}

#[test]
fn errors_say_how_to_write_a_name() {
    assert!(error("").contains("label=value"));
    assert!(error("alice").contains("jwt.sub=alice"));
    for unknown in
        ["sub=alice", "jwt=alice", "jwt.=x", "jwt.a..b=x", "jwt@.a=x", "header.=x", "ips=1", "=x"]
    {
        assert!(error(unknown).contains("is not a label"), "{unknown}: {}", error(unknown));
    }
    assert!(
        error("jwt.sub=").contains("has no value") && error("jwt.sub").contains("has no value")
    );
    for wildcard in ["method=*", "jwt.sub=a,method=*"] {
        let error = error(wildcard);
        assert!(error.starts_with("`method=*` names no partition") && error.contains("%2A"));
    }
    assert_eq!(
        (encode("jwt.sub=%2A"), encode("jwt.sub=*a")),
        ("jwt.sub=%2A".into(), "jwt.sub=%2Aa".into())
    );
    for wrong in [
        "ip=alice",
        "ip=192.0.2.0/33",
        "ip=192.0.2.0/0",
        "ip=::ffff:192.0.2.0/120",
        "ip=2001:db8::/0",
        "ip=2001:db8::/129",
        "ip=%FF",
        "ip=",
    ] {
        assert!(error(wrong).contains("must be an address"), "{wrong}: {}", error(wrong));
    }
}

#[test]
fn a_single_ipv6_address_is_reported() {
    let single =
        |typed: &str| Name::parse(typed, Vec::new()).unwrap().single_ipv6().map(ToOwned::to_owned);
    assert_eq!(single("ip=2001:db8::1").as_deref(), Some("2001:db8::1"));
    for other in ["ip=2001:db8::1/64", "ip=192.0.2.7", "jwt.sub=a:b"] {
        assert_eq!(single(other), None, "{other}");
    }
}
