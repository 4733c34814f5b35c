//! Whether a policy can count the partition that an operator names, and the order of the entries in
//! its keys.
//!
//! A report says what a policy counts by, as [`PartitionEntry`]s. Until a filter has reported them,
//! every partition passes.

use quotagate_protocol::dials::PartitionEntry;
use quotagate_quota::request::naming::is_digest;

use crate::api::PolicyInfo;

/// The partition of everybody, and an entry whose value is missing.
const EVERYONE: &str = "*";
const MISSING: &str = "-";
/// Most entries in a partition that is arranged.
const MAX_ENTRIES: usize = 256;
/// Most forms tried on a partition.
const TRIES: u32 = 4096;

/// `partition` with its entries in the order of the policy's keys. If proxies have several
/// documents, the latest that counts such a partition says the order.
///
/// # Errors
/// Why the policy cannot count it, with an example that it can count.
pub fn arrange(policy: &PolicyInfo, partition: &str) -> Result<String, String> {
    let mut forms = policy.forms().map(|form| arrange_in(form, partition));
    let latest = forms.next().unwrap_or_else(|| Ok(partition.to_owned()));
    latest.or_else(|reason| forms.find_map(Result::ok).ok_or(reason))
}

/// Whether some partition of the policy may contain this party and more. Then only a search finds
/// it. If in doubt, it may.
pub fn may_contain(policy: &PolicyInfo, party: &str) -> bool {
    let given: Vec<&str> = party.split(',').collect();
    policy.forms().any(|form| {
        let Some(entries) = &form.partition_by else { return true };
        let parts = |form: &String| form.split(',').count();
        let longest = entries.iter().filter_map(|entry| entry.forms.iter().map(parts).max());
        let is_known = |text: &&str| {
            let forms = entries.iter().flat_map(|entry| &entry.forms);
            forms.flat_map(|form| form.split(',')).any(|part| is_of(part, text))
        };
        longest.sum::<usize>() > given.len() && given.iter().all(is_known)
    })
}

/// [`arrange`] for one document.
fn arrange_in(policy: &PolicyInfo, partition: &str) -> Result<String, String> {
    let Some(entries) = &policy.partition_by else { return Ok(partition.to_owned()) };
    if entries.is_empty() {
        return match partition {
            EVERYONE => Ok(partition.to_owned()),
            _ => Err(format!(
                "policy {} has one counter for everybody: name it {EVERYONE}",
                policy.name
            )),
        };
    }
    if is_digest(partition) {
        return Ok(partition.to_owned());
    }
    let given: Vec<&str> = partition.split(',').collect();
    if given.len() <= MAX_ENTRIES {
        // Entries may share labels, so a partition that fits as written keeps its order.
        for any_order in [false, true] {
            let mut search = Search { given: &given, any_order, taken: Vec::new(), tries: TRIES };
            if search.fits(entries) {
                let ordered = search.taken.iter().filter_map(|at| given.get(*at).copied());
                return Ok(ordered.collect::<Vec<_>>().join(","));
            }
        }
    }
    Err(expected(policy, entries, &given))
}

/// Whether some partition of the policy can contain all entries of this party.
pub fn can_contain(policy: &PolicyInfo, party: &str) -> bool {
    let Some(entries) = &policy.partition_by else { return true };
    let parts = || entries.iter().flat_map(|entry| &entry.forms).flat_map(|form| form.split(','));
    party.split(',').all(|entry| parts().any(|part| is_of(part, entry)))
}

/// What a policy counts by, as a reason why it cannot contain a party.
pub fn counts_by(policy: &PolicyInfo) -> String {
    match policy.partition_by.as_deref() {
        None | Some([]) => format!("policy {} has one counter for everybody", policy.name),
        Some(entries) => {
            let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
            let examples: Vec<String> =
                entries.iter().map(|entry| example_of(entry, &[])).collect();
            let (names, examples) = (names.join(", "), examples.join(","));
            format!("policy {} counts by {names}: its partitions look like {examples}", policy.name)
        }
    }
}

/// Matches the given entries to those of a policy.
struct Search<'g> {
    given: &'g [&'g str],
    any_order: bool,
    /// Indexes into `given` of the entries used so far, in the order of the key.
    taken: Vec<usize>,
    /// Forms that may still be tried.
    tries: u32,
}

impl Search<'_> {
    fn fits(&mut self, entries: &[PartitionEntry]) -> bool {
        let Some((entry, rest)) = entries.split_first() else {
            return self.taken.len() == self.given.len();
        };
        for form in &entry.forms {
            let Some(left) = self.tries.checked_sub(1) else { return false };
            self.tries = left;
            let before = self.taken.len();
            if form.split(',').all(|part| self.take(part)) && self.fits(rest) {
                return true;
            }
            self.taken.truncate(before);
        }
        false
    }

    fn take(&mut self, part: &str) -> bool {
        let suits = |at: &usize| self.given.get(*at).is_some_and(|text| is_of(part, text));
        let found = if self.any_order {
            (0..self.given.len()).find(|at| !self.taken.contains(at) && suits(at))
        } else {
            Some(self.taken.len()).filter(suits)
        };
        self.taken.extend(found);
        found.is_some()
    }
}

/// Whether an entry of a partition matches this part of a form.
fn is_of(part: &str, text: &str) -> bool {
    let (label, rule) = part.split_once('=').unwrap_or((part, ""));
    match text.split_once('=') {
        None => part == MISSING && text == MISSING,
        Some((given, value)) if given == label => match rule {
            // A network is not a single address.
            "" => label != "ip" || !value.contains('/'),
            "~" => is_digest(value),
            prefixes => {
                let (address, bits) = value.split_at(value.find('/').unwrap_or(value.len()));
                bits == network_of(prefixes, address)
            }
        },
        Some(_) => false,
    }
}

/// What follows an address of this family in keys, by the `/64` or `/24/64` of a form: `/24`, or
/// nothing where each address counts by itself.
fn network_of(prefixes: &str, address: &str) -> String {
    let prefixes = prefixes.trim_start_matches('/');
    let (ipv4, ipv6) = prefixes.split_once('/').unwrap_or(("32", prefixes));
    match if address.contains(':') { ipv6 } else { ipv4 } {
        "32" if !address.contains(':') => String::new(),
        "128" => String::new(),
        prefix => format!("/{prefix}"),
    }
}

/// Why `given` does not fit, with an example that keeps as much of it as possible.
fn expected(policy: &PolicyInfo, entries: &[PartitionEntry], given: &[&str]) -> String {
    let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    let (how, examples) = match entries {
        [only] => {
            let forms = only.forms.iter().filter(|form| *form != MISSING);
            ("it", forms.map(|form| example(form, given)).collect::<Vec<_>>().join(" or "))
        }
        all => {
            let how = if all.len() == 2 { "both" } else { "all of them" };
            (how, all.iter().map(|entry| example_of(entry, given)).collect::<Vec<_>>().join(","))
        }
    };
    let mut text =
        format!("policy {} counts by {}: name {how}, as {examples}", policy.name, names.join(", "));
    let forms = entries.iter().flat_map(|entry| &entry.forms);
    let secrets: Vec<&str> =
        forms.flat_map(|form| form.split(',')).filter_map(|part| part.strip_suffix("=~")).collect();
    if !secrets.is_empty() {
        text += &format!(" (keys have a digest of {}: --secret computes it)", secrets.join(", "));
    }
    text
}

/// An entry in the form that best fits the given entries, or in its first form.
fn example_of(entry: &PartitionEntry, given: &[&str]) -> String {
    let label = |part: &str| part.split('=').next().map(str::to_owned);
    let is_given = |form: &&String| {
        form.split(',')
            .any(|part| given.iter().any(|text| text.contains('=') && label(text) == label(part)))
    };
    let form = entry.forms.iter().find(is_given).or(entry.forms.first());
    form.map_or_else(String::new, |form| example(form, given))
}

/// A form with the given values, and made-up ones for the rest.
fn example(form: &str, given: &[&str]) -> String {
    let parts = form.split(',').map(|part| {
        let (label, rule) = part.split_once('=').unwrap_or((part, ""));
        let same =
            given.iter().find(|text| text.split_once('=').is_some_and(|(name, _)| name == label));
        match (same, rule) {
            (Some(text), "") if label == "ip" => text.split('/').next().unwrap_or(text).to_owned(),
            (Some(text), "") => (*text).to_owned(),
            (Some(text), network) if network.starts_with('/') => {
                let address = text.split('/').next().unwrap_or(text);
                format!("{address}{}", network_of(network, address))
            }
            (_, "~") => format!("{label}=~DIGEST"),
            (None, network) if network.starts_with('/') => {
                let address = made_up(label);
                format!("{label}={address}{}", network_of(network, address))
            }
            _ => format!("{label}={}", made_up(label)),
        }
    });
    parts.collect::<Vec<_>>().join(",")
}

fn made_up(label: &str) -> &'static str {
    match label {
        "ip" => "192.0.2.7",
        "method" => "GET",
        "host" => "shop.example",
        "path" => "/login",
        "jwt.sub" => "alice",
        _ => "VALUE",
    }
}

#[cfg(test)]
mod tests {
    use quotagate_protocol::dials::DocumentOverrides;
    use quotagate_protocol::{Kind, Mode, OnFailure};

    use super::*;

    const DIGEST: &str = "~5bdcc146bf60754e6a042426089575c7";

    fn policy(entries: &[(&str, &[&str])]) -> PolicyInfo {
        let entry = |(name, forms): &(&str, &[&str])| PartitionEntry {
            name: (*name).to_owned(),
            forms: forms.iter().map(|form| (*form).to_owned()).collect(),
        };
        PolicyInfo {
            name: "p".to_owned(),
            quota: 5,
            kind: Kind::Fixed,
            window_s: 60,
            stagger: false,
            mode: Mode::Enforce,
            on_failure: OnFailure::Allow,
            partition_by: Some(entries.iter().map(entry).collect()),
            tiers: false,
            digest: String::new(),
            gone: false,
            also: Vec::new(),
            overrides: DocumentOverrides::None,
            settles: false,
            seen_ms: 0,
        }
    }

    #[test]
    fn entries_in_any_order_are_arranged_in_the_policys_order() {
        let two = policy(&[
            ("caller", &["jwt.iss,jwt.sub", "ip=/64", "-"]),
            ("method", &["method", "-"]),
        ]);
        for (typed, counted) in [
            ("jwt.iss=i,jwt.sub=a,method=GET", "jwt.iss=i,jwt.sub=a,method=GET"),
            ("method=GET,jwt.sub=a,jwt.iss=i", "jwt.iss=i,jwt.sub=a,method=GET"),
            ("method=GET,ip=192.0.2.7", "ip=192.0.2.7,method=GET"),
            ("method=GET,ip=2001:db8::/64", "ip=2001:db8::/64,method=GET"),
            ("method=GET,-", "-,method=GET"),
            ("-,method=GET", "-,method=GET"),
            (DIGEST, DIGEST),
        ] {
            assert_eq!(arrange(&two, typed).as_deref(), Ok(counted), "{typed}");
        }
        let whole = policy(&[("caller", &["ip"])]);
        assert_eq!(arrange(&whole, "ip=2001:db8::7").as_deref(), Ok("ip=2001:db8::7"));
        assert!(arrange(&whole, "ip=2001:db8::/64").unwrap_err().ends_with("as ip=2001:db8::"));
        // If both orders fit, the typed one wins.
        let same = policy(&[("one", &["a.x", "a.y"]), ("other", &["a.x", "a.y"])]);
        assert_eq!(arrange(&same, "a.y=1,a.x=2").as_deref(), Ok("a.y=1,a.x=2"));
        let not_first = policy(&[("one", &["a.x", "a.y"]), ("other", &["a.x"])]);
        assert_eq!(arrange(&not_first, "a.x=1,a.y=2").as_deref(), Ok("a.y=2,a.x=1"));
        let key = policy(&[("key", &["header.x-key=~"])]);
        let digest = format!("header.x-key={DIGEST}");
        assert_eq!(arrange(&key, &digest), Ok(digest));
    }

    #[test]
    fn uncountable_partition_is_refused_with_a_correct_example() {
        let two = policy(&[("caller", &["jwt.sub", "ip=/64", "-"]), ("method", &["method"])]);
        let both = "policy p counts by caller, method: name both, as";
        for (typed, form) in [
            ("jwt.sub=mallory", "jwt.sub=mallory,method=GET"),
            ("method=POST", "jwt.sub=alice,method=POST"),
            ("ip=192.0.2.9", "ip=192.0.2.9,method=GET"),
            ("ip=2001:db8::7,method=GET", "ip=2001:db8::7/64,method=GET"),
            ("ip=2001:db8::/56,method=GET", "ip=2001:db8::/64,method=GET"),
            ("header.x-plan=gold", "jwt.sub=alice,method=GET"),
            ("jwt.sub=a,method=GET,path=/", "jwt.sub=a,method=GET"),
            ("jwt.sub=a,jwt.sub=b", "jwt.sub=a,method=GET"),
            ("*", "jwt.sub=alice,method=GET"),
        ] {
            assert_eq!(arrange(&two, typed), Err(format!("{both} {form}")), "{typed}");
        }
        let one = policy(&[("caller", &["jwt.sub", "ip=/64", "-"])]);
        let text = "policy p counts by caller: name it, as jwt.sub=alice or ip=192.0.2.7";
        assert_eq!(arrange(&one, "host=a"), Err(text.to_owned()));
        let network = policy(&[("network", &["ip=/24/56"])]);
        for typed in ["ip=192.0.2.0/24", "ip=2001:db8::/56"] {
            assert_eq!(arrange(&network, typed).as_deref(), Ok(typed));
        }
        let by_network = "policy p counts by network: name it, as";
        for (typed, form) in [
            ("ip=192.0.2.7", "ip=192.0.2.7/24"),
            ("ip=192.0.0.0/16", "ip=192.0.0.0/24"),
            ("ip=2001:db8::/64", "ip=2001:db8::/56"),
            ("host=a", "ip=192.0.2.7/24"),
        ] {
            assert_eq!(arrange(&network, typed), Err(format!("{by_network} {form}")), "{typed}");
        }
        assert!(arrange(&policy(&[("caller", &["jwt.sub"])]), "-").is_err(), "nobody lacks it");
        let everyone = "policy p has one counter for everybody: name it *";
        assert_eq!(arrange(&policy(&[]), "jwt.sub=bob"), Err(everyone.to_owned()));
        assert_eq!(arrange(&policy(&[]), "*").as_deref(), Ok("*"));
    }

    #[test]
    fn party_may_be_in_more_partitions_unless_it_names_them_whole() {
        let caller: (&str, &[&str]) = ("caller", &["jwt.iss,jwt.sub", "ip=/64", "-"]);
        let one = policy(&[caller]);
        let two = policy(&[caller, ("method", &["method", "-"])]);
        for (policy, party, may) in [
            (&one, "jwt.iss=i,jwt.sub=a", false),
            (&one, "jwt.sub=a", true),
            (&one, "ip=192.0.2.7", true),
            (&one, "header.x=y", false),
            (&two, "jwt.iss=i,jwt.sub=a,method=GET", false),
            (&two, "jwt.iss=i,jwt.sub=a", true),
            (&two, "ip=192.0.2.7,method=GET", true),
            (&two, "header.x=y,method=GET", false),
            (&policy(&[]), "jwt.sub=a", false),
            (&PolicyInfo { partition_by: None, ..policy(&[]) }, "jwt.sub=a", true),
        ] {
            assert_eq!(may_contain(policy, party), may, "{party}");
        }
        let mixed = PolicyInfo { also: vec![two], ..policy(&[("user", &["jwt.sub"])]) };
        assert!(!may_contain(&policy(&[("user", &["jwt.sub"])]), "jwt.sub=a"));
        assert!(may_contain(&mixed, "jwt.sub=a"), "by another document");
    }

    #[test]
    fn secret_in_plain_text_is_refused_and_not_repeated() {
        let key = policy(&[("key", &["header.x-key=~"])]);
        let fault = arrange(&key, "header.x-key=TOPSECRET").unwrap_err();
        assert!(fault.contains("header.x-key=~DIGEST") && fault.contains("--secret"), "{fault}");
        assert!(!fault.contains("TOPSECRET"), "{fault}");
    }

    #[test]
    fn unreported_policy_accepts_every_partition_and_the_search_is_bounded() {
        let unsaid = PolicyInfo { partition_by: None, ..policy(&[]) };
        assert_eq!(arrange(&unsaid, "b.x=1,a.x=1").as_deref(), Ok("b.x=1,a.x=1"));
        let forms: Vec<String> = (0..16).map(|n| format!("a.{n}")).collect();
        let forms: Vec<&str> = forms.iter().map(String::as_str).collect();
        let many = policy(&vec![("x", forms.as_slice()); 16]);
        let typed = vec!["a.1=1"; 15].join(",");
        assert!(arrange(&many, &format!("{typed},b.1=1")).is_err());
        assert!(arrange(&many, &vec!["a.1=1"; 1000].join(",")).is_err());
    }
}
