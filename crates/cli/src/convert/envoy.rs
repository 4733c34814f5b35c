//! The `rate_limits` of a configuration of Envoy: which descriptors it sends, and on which routes.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde_json::Value;

use super::action::{Alternative, SentEntry, alternatives};
use super::conditions::{Conditions, ValueCondition, ValueSource, ValueTest};
use super::message::{EnvoyRoute, flag, is_a, list, member, number, status_code, text};

/// Most descriptors that one entry of `rate_limits` may send, as `skip_if_absent` doubles them.
const MAX_ALTERNATIVES: usize = 16;

/// Fields of the filter that a document does not have, and what to do instead.
const FILTER_FIELDS: [(&str, &str); 6] = [
    ("filter_enabled", "set `mode: shadow` in the policies, or use `quotagate dial set`"),
    ("filter_enforced", "set `mode: shadow` in the policies, or use `quotagate dial set`"),
    ("failure_mode_deny_percent", "choose `store.on_failure: allow` or `deny`"),
    ("status_on_error", "with `on_failure: deny` the status is 503"),
    ("response_headers_to_add", "write them into `response.denied.headers`"),
    (
        "disable_x_envoy_ratelimited_header",
        "each refusal carries x-envoy-ratelimited, so let an Envoy in front remove it",
    ),
];

/// Descriptors of one form that Envoy sends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SentForm {
    pub(super) domain: String,
    pub(super) entries: Vec<SentEntry>,
    /// Of the requests that have such a descriptor.
    pub(super) conditions: Conditions,
    pub(super) cost: SentCost,
}

/// The hits of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum SentCost {
    Units(u64),
    /// The header says them.
    Header(String),
    /// None: it only looks.
    Look,
    /// So many, when the response ends.
    Late(u64),
    /// Dynamic metadata says them when the response ends.
    Settled {
        filter: String,
        path: Vec<String>,
    },
}

/// Where a form is sent.
#[derive(Debug, Default)]
pub(super) struct SentRoutes {
    /// Indexes of routes.
    pub(super) routes: BTreeSet<usize>,
    /// What a document does not say of it.
    pub(super) gaps: Vec<String>,
}

/// What a configuration sends.
#[derive(Debug, Default)]
pub(super) struct EnvoyDescriptors<'e> {
    pub(super) forms: Vec<(SentForm, SentRoutes)>,
    /// What no policy can be made of, each with its path.
    pub(super) gaps: Vec<String>,
    pub(super) routes: Vec<EnvoyRoute<'e>>,
    /// The first filter.
    pub(super) filter: Option<&'e Value>,
}

/// The filter with its name.
#[derive(Clone, Copy)]
struct EnvoyFilter<'e> {
    name: &'e str,
    fields: &'e Value,
    is_disabled: bool,
}

/// Everything in a configuration that has to do with rate limits.
#[derive(Default)]
struct ConfigurationScan<'e> {
    managers: Vec<ConnectionManager<'e>>,
    /// Route tables outside of a connection manager.
    tables: Vec<&'e Value>,
    network_filters: usize,
    cluster: Option<&'e str>,
}

/// The filters of a connection manager, and its routes.
struct ConnectionManager<'e> {
    filters: Vec<EnvoyFilter<'e>>,
    /// The table that it contains.
    inline: Option<&'e Value>,
    /// The name of the table that it gets by RDS.
    table_name: Option<&'e str>,
}

/// Reads the configuration in these documents.
///
/// # Errors
/// When it has no filter.
pub(super) fn read(documents: &[Value]) -> Result<EnvoyDescriptors<'_>, String> {
    let mut found = ConfigurationScan::default();
    for document in documents {
        let dumped = list(document, "configs").iter();
        let mut nodes = std::iter::once(document)
            .chain(dumped.filter_map(|config| member(config, "bootstrap")))
            .filter_map(|bootstrap| member(bootstrap, "node"));
        found.cluster = found.cluster.or_else(|| nodes.find_map(|node| text(node, "cluster")));
        found.search(document);
    }
    let mut collector = DescriptorCollector {
        sent: EnvoyDescriptors::default(),
        routes: HashMap::new(),
        sent_by_manager: HashSet::new(),
        cluster: found.cluster,
    };
    if found.network_filters > 0 {
        collector.gap(
            "envoy.filters.network.ratelimit: a policy counts HTTP requests, so keep this filter \
             for connections"
                .to_owned(),
        );
    }
    for manager in &found.managers {
        let tables = found.tables(manager);
        collector.sent_by_manager.clear();
        for filter in &manager.filters {
            collector.sent.filter.get_or_insert(filter.fields);
            for (name, remedy) in FILTER_FIELDS {
                if member(filter.fields, name).is_some() {
                    collector.gap(format!("the field {name} of the filter: {remedy}"));
                }
            }
            let status = member(filter.fields, "rate_limited_status");
            if let Some(code) = status.and_then(|status| member(status, "code"))
                && status_code(code).is_none()
            {
                collector.gap(format!(
                    "rate_limited_status.code {code} of the filter: write its number into \
                     `response.denied.status`"
                ));
            }
            if tables.is_empty() {
                collector.gap(
                    "the routes of the filter are not in the file: add their RouteConfiguration, \
                     such as `curl localhost:9901/config_dump?include_eds` prints it"
                        .to_owned(),
                );
            }
            for table in &tables {
                collector.table(*filter, table);
            }
        }
    }
    if collector.sent.filter.is_none() && found.network_filters == 0 {
        return Err(
            "has no filter envoy.filters.http.ratelimit: give the whole configuration, with \
                    its listener"
                .to_owned(),
        );
    }
    collector.sent.pair_looks();
    Ok(collector.sent)
}

impl<'e> ConfigurationScan<'e> {
    fn search(&mut self, value: &'e Value) {
        let inner: Vec<&Value> = match value {
            Value::Array(elements) => elements.iter().collect(),
            Value::Object(members) => members.values().collect(),
            _ => return,
        };
        if let Some(filters) = member(value, "http_filters").and_then(Value::as_array) {
            let filters: Vec<_> = filters.iter().filter_map(http_filter).collect();
            if !filters.is_empty() {
                let table_name =
                    member(value, "rds").and_then(|rds| text(rds, "route_config_name"));
                let inline = member(value, "route_config");
                self.managers.push(ConnectionManager { filters, inline, table_name });
            }
        } else if member(value, "virtual_hosts").is_some() {
            self.tables.push(value);
        } else if is_a(value, "filters.network.ratelimit.v3.RateLimit") {
            self.network_filters += 1;
        } else if let Some(filter) = http_filter(value) {
            // Outside of a connection manager, as in a patch.
            let filters = vec![filter];
            self.managers.push(ConnectionManager { filters, inline: None, table_name: None });
        } else {
            inner.into_iter().for_each(|inner| self.search(inner));
        }
    }

    /// The route tables of a connection manager: its own one, those of the name that it asks for,
    /// or all if it names none.
    fn tables(&self, manager: &ConnectionManager<'e>) -> Vec<&'e Value> {
        let is_asked_for = |table: &&&Value| {
            manager.table_name.is_none_or(|name| text(table, "name") == Some(name))
        };
        match manager.inline {
            Some(table) => vec![table],
            None => self.tables.iter().filter(is_asked_for).copied().collect(),
        }
    }
}

fn http_filter(value: &Value) -> Option<EnvoyFilter<'_>> {
    let fields = member(value, "typed_config")?;
    let name = text(value, "name").unwrap_or("envoy.filters.http.ratelimit");
    let is_disabled = flag(value, "disabled");
    is_a(fields, "filters.http.ratelimit.v3.RateLimit").then_some(EnvoyFilter {
        name,
        fields,
        is_disabled,
    })
}

/// Collects what each connection manager sends on each of its routes.
struct DescriptorCollector<'e> {
    sent: EnvoyDescriptors<'e>,
    /// The index of each route that is known.
    routes: HashMap<*const Value, usize>,
    /// The forms and routes, by their indexes, that the current connection manager sends.
    sent_by_manager: HashSet<(usize, usize)>,
    cluster: Option<&'e str>,
}

/// Where an entry of `rate_limits` is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// `rate_limits` of the filter or of RateLimitPerRoute.
    Filter,
    /// `rate_limits` of a route or a virtual host.
    Route,
}

impl<'e> DescriptorCollector<'e> {
    fn gap(&mut self, text: String) {
        if !self.sent.gaps.contains(&text) {
            self.sent.gaps.push(text);
        }
    }

    fn table(&mut self, filter: EnvoyFilter<'e>, table: &'e Value) {
        for host in list(table, "virtual_hosts") {
            if member(host, "matcher").is_some() {
                let name = text(host, "name").unwrap_or_default();
                self.gap(format!(
                    "virtual host {name} chooses its routes by a matcher: write `routes` instead, \
                     and convert again"
                ));
            }
            for (index, route) in list(host, "routes").iter().enumerate() {
                let at = self.route(host, index, route);
                self.limits(filter, [route, host, table], at);
            }
        }
    }

    /// The index of a route.
    fn route(&mut self, host: &Value, index: usize, route: &'e Value) -> usize {
        let routes = &mut self.sent.routes;
        *self.routes.entry(std::ptr::from_ref(route)).or_insert_with(|| {
            let named = text(route, "name").filter(|name| !name.is_empty());
            let host = text(host, "name").unwrap_or("route");
            let name = named.map_or_else(|| format!("{host}-{}", index + 1), str::to_owned);
            routes.push(EnvoyRoute { name, is_named: named.is_some(), fields: route });
            routes.len() - 1
        })
    }

    /// The entries that apply to a route: those of RateLimitPerRoute, or else of the filter, or
    /// else of the route and its virtual host.
    fn limits(&mut self, filter: EnvoyFilter<'e>, scopes: [&'e Value; 3], at: usize) {
        let [route, host, _] = scopes;
        let Some(action) = member(route, "route") else { return };
        let own = scopes
            .iter()
            .find_map(|scope| member(member(scope, "typed_per_filter_config")?, filter.name));
        let weighted =
            member(action, "weighted_clusters").map_or(&[][..], |of| list(of, "clusters"));
        let of_filter = |cluster| member(member(cluster, "typed_per_filter_config")?, filter.name);
        if weighted.iter().any(|cluster| of_filter(cluster).is_some()) {
            let name = self.sent.routes.get(at).map_or("", |route| &route.name).to_owned();
            self.gap(format!(
                "route {name} has limits for single clusters of weighted_clusters: write a route \
                 for each of these clusters, and convert again"
            ));
        }
        let is_wrapped = own.is_some_and(|own| is_a(own, "route.v3.FilterConfig"));
        let is_disabled = match own {
            Some(own) if is_wrapped => flag(own, "disabled"),
            Some(_) => false,
            None => filter.is_disabled,
        };
        if is_disabled {
            return;
        }
        let own = if is_wrapped { own.and_then(|own| member(own, "config")) } else { own };
        let domain = own.and_then(|own| text(own, "domain")).filter(|domain| !domain.is_empty());
        let domain = domain.or_else(|| text(filter.fields, "domain")).unwrap_or_default();
        let mut context =
            EntryContext { filter, domain, owner: Owner::Filter, at, name: String::new() };
        let of_route = own.map_or(&[][..], |own| list(own, "rate_limits"));
        let of_filter = list(filter.fields, "rate_limits");
        let name = self.sent.routes.get(at).map_or_else(String::new, |route| route.name.clone());
        if !of_route.is_empty() {
            context.name = format!("route {name}, typed_per_filter_config.rate_limits");
            return self.entries(&context, of_route);
        }
        if !of_filter.is_empty() {
            context.name = "the filter's rate_limits".to_owned();
            return self.entries(&context, of_filter);
        }
        context.owner = Owner::Route;
        let limits = list(action, "rate_limits");
        context.name = format!("route {name}, rate_limits");
        self.entries(&context, limits);
        let includes = match own.map(virtual_host_option) {
            _ if flag(action, "include_vh_rate_limits") => true,
            Some("INCLUDE") => true,
            Some("IGNORE") => false,
            _ => limits.is_empty(),
        };
        if includes {
            let host_name = text(host, "name").unwrap_or_default();
            context.name = format!("virtual host {host_name}, rate_limits");
            self.entries(&context, list(host, "rate_limits"));
        }
    }

    fn entries(&mut self, context: &EntryContext<'e>, limits: &'e [Value]) {
        let of_filter = number(context.filter.fields, "stage").unwrap_or_default();
        let mut sent = Vec::new();
        for (index, limit) in limits.iter().enumerate() {
            let stage = number(limit, "stage").unwrap_or_default();
            if context.owner == Owner::Route && stage != of_filter {
                continue;
            }
            let at = format!("{}[{index}]", context.name);
            match self.entry(context, limit) {
                Err(gap) => self.gap(format!("{at}: {gap}")),
                Ok(forms) => {
                    for (form, gaps) in forms {
                        let gaps = gaps.into_iter().map(|gap| format!("{at}: {gap}")).collect();
                        sent.push((form, gaps));
                    }
                }
            }
        }
        for (form, gaps) in sent {
            self.send(form, gaps, context.at);
        }
    }

    fn send(&mut self, form: SentForm, gaps: Vec<String>, at: usize) {
        let forms = &mut self.sent.forms;
        let known = forms.iter().position(|(known, _)| *known == form);
        let index = known.unwrap_or_else(|| {
            forms.push((form, SentRoutes::default()));
            forms.len() - 1
        });
        let Some((_, on)) = forms.get_mut(index) else { return };
        on.routes.insert(at);
        let is_new = self.sent_by_manager.insert((index, at));
        let twice = "Envoy sends this descriptor twice, so it costs twice as much there: write \
                     `cost: 2` if you want that";
        let twice = (!is_new).then(|| twice.to_owned());
        for gap in gaps.into_iter().chain(twice) {
            if !on.gaps.contains(&gap) {
                on.gaps.push(gap);
            }
        }
    }

    /// The descriptors that an entry of `rate_limits` sends, each with what a document does not
    /// say of it.
    fn entry(
        &self,
        context: &EntryContext<'e>,
        limit: &'e Value,
    ) -> Result<Vec<(SentForm, Vec<String>)>, String> {
        let route = self.sent.routes.get(context.at).ok_or("a route is missing")?;
        let mut gaps = Vec::new();
        let cost = cost(context.owner, limit, &mut gaps)?;
        let request_type = text(context.filter.fields, "request_type").unwrap_or_default();
        let mut base = Alternative::default();
        let test = ValueTest::Exact("true".to_owned());
        let internal =
            ValueCondition { of: ValueSource::Header("x-envoy-internal".to_owned()), test };
        match request_type {
            "internal" => base.conditions.all.push(internal),
            "external" => base.conditions.none.push(internal),
            _ => {}
        }
        let mut forms: Vec<(Vec<SentEntry>, Conditions, Vec<String>)> =
            vec![(Vec::new(), base.conditions, gaps)];
        for action in list(limit, "actions") {
            let alternatives = alternatives(action, route, self.cluster)?;
            let longer = forms.iter().flat_map(|form| {
                alternatives.iter().map(move |alternative| {
                    let (mut entries, mut conditions, mut gaps) = form.clone();
                    entries.extend(alternative.entry.clone());
                    conditions.all.extend(alternative.conditions.all.iter().cloned());
                    conditions.none.extend(alternative.conditions.none.iter().cloned());
                    gaps.extend(alternative.gap.clone());
                    (entries, conditions, gaps)
                })
            });
            let longer: Vec<_> = longer.collect();
            if longer.len() > MAX_ALTERNATIVES {
                return Err("has too many actions with skip_if_absent: write a policy for each \
                            combination that you need"
                    .to_owned());
            }
            forms = longer;
        }
        let forms = forms.into_iter().filter(|(entries, ..)| !entries.is_empty());
        let form = |(entries, conditions, gaps)| {
            let domain = context.domain.to_owned();
            (SentForm { domain, entries, conditions, cost: cost.clone() }, gaps)
        };
        Ok(forms.map(form).collect())
    }
}

/// What applies to the entries of one list.
struct EntryContext<'e> {
    filter: EnvoyFilter<'e>,
    domain: &'e str,
    owner: Owner,
    /// The index of the route.
    at: usize,
    /// What people call the list.
    name: String,
}

/// The hits of an entry.
fn cost(owner: Owner, limit: &Value, gaps: &mut Vec<String>) -> Result<SentCost, String> {
    if let Some(from) = member(limit, "limit").and_then(|limit| member(limit, "dynamic_metadata"))
        && owner == Owner::Route
    {
        let of = member(from, "metadata_key");
        let filter = of.and_then(|of| text(of, "key")).unwrap_or_default();
        let steps = of.map_or(&[][..], |of| list(of, "path"));
        let mut path: Vec<&str> = steps.iter().filter_map(|step| text(step, "key")).collect();
        path.push("requests_per_unit");
        gaps.push(format!(
            "`limit` lets metadata replace the limit and its unit. A window is fixed here: if the \
             unit is always that of this policy, add `quota_from: {{metadata: {{filter: {filter}, \
             path: [{}]}}}}`",
            path.join(", ")
        ));
    }
    if owner == Owner::Route && text(limit, "disable_key").is_some_and(|key| !key.is_empty()) {
        gaps.push(
            "the runtime can disable it by its `disable_key`: use `quotagate dial set POLICY --mode \
             off`"
                .to_owned(),
        );
    }
    if member(limit, "x_ratelimit_option").is_some() {
        gaps.push(
            "`x_ratelimit_option` chooses headers for this descriptor: choose `response.headers`, \
             which hold for all policies"
                .to_owned(),
        );
    }
    let hits = member(limit, "hits_addend");
    let is_late = flag(limit, "apply_on_stream_done");
    if owner == Owner::Route {
        // Envoy reads neither there.
        return Ok(SentCost::Units(1));
    }
    let units = hits.and_then(|hits| number(hits, "number"));
    let format = hits.and_then(|hits| text(hits, "format")).filter(|format| !format.is_empty());
    let inside = |format: &str, begin: &str| {
        let inside = format.strip_prefix(begin)?.strip_suffix(")%")?;
        (!inside.contains(['%', '?'])).then(|| inside.to_owned())
    };
    match (units, format, is_late) {
        (Some(0), _, false) => Ok(SentCost::Look),
        (units, None, false) => Ok(SentCost::Units(units.unwrap_or(1))),
        (_, Some(format), false) => match inside(format, "%REQ(") {
            Some(header) => {
                gaps.push(format!(
                    "a request without a number in the header {header:?} is not counted there, and \
                     costs 1 here: let clients not leave it out"
                ));
                Ok(SentCost::Header(header))
            }
            None => Err(format!(
                "the hits {format:?}: write them into a header, and `cost: {{header: {{name: ..}}}}`"
            )),
        },
        (units, None, true) => Ok(SentCost::Late(units.unwrap_or(1))),
        (_, format, true) => {
            let names = format.and_then(|format| inside(format, "%DYNAMIC_METADATA("));
            let mut names = names.as_deref().unwrap_or_default().split(':');
            let filter = names.next().unwrap_or_default().to_owned();
            let path: Vec<String> = names.map(str::to_owned).collect();
            if path.is_empty() {
                return Err("apply_on_stream_done counts when the response ends: write `cost: \
                            {reserve: 1, settle: [..]}` into the policy of these descriptors"
                    .to_owned());
            }
            Ok(SentCost::Settled { filter, path })
        }
    }
}

impl EnvoyDescriptors<'_> {
    /// A look before the request, and hits when its response ends, are one cost that is settled.
    fn pair_looks(&mut self) {
        let forms = std::mem::take(&mut self.forms);
        let is_late =
            |form: &SentForm| matches!(form.cost, SentCost::Settled { .. } | SentCost::Late(_));
        let (late, now): (Vec<_>, Vec<_>) = forms.into_iter().partition(|(form, _)| is_late(form));
        let mut used = vec![false; late.len()];
        for (mut form, mut on) in now {
            if form.cost == SentCost::Look {
                let pair = late.iter().position(|(late, of)| {
                    late.domain == form.domain
                        && late.entries == form.entries
                        && late.conditions == form.conditions
                        && of.routes == on.routes
                });
                match pair.and_then(|pair| Some((late.get(pair)?, used.get_mut(pair)?))) {
                    Some(((late, late_on), used)) => {
                        *used = true;
                        form.cost = match late.cost {
                            // One call that takes them admits no more than a look before them.
                            SentCost::Late(units) => SentCost::Units(units),
                            _ => late.cost.clone(),
                        };
                        on.gaps.extend(late_on.gaps.iter().cloned());
                    }
                    None => {
                        self.gaps.push(format!(
                            "{} with hits_addend 0 only looks whether the limit is used up, and \
                             takes nothing: write `cost: {{reserve: 1, settle: [..]}}` into the \
                             policy that takes the units",
                            form.words()
                        ));
                        continue;
                    }
                }
            }
            self.forms.push((form, on));
        }
        for ((form, _), _) in late.iter().zip(used).filter(|(_, used)| !used) {
            self.gaps.push(format!(
                "{} counts when the response ends, and no entry looks at its limit before: write \
                 `cost: {{reserve: 1, settle: [..]}}` into a policy with `mode: shadow`",
                form.words()
            ));
        }
    }
}

impl SentForm {
    /// The descriptor as people read it: `remote_address=*,generic_key=slow`.
    pub(super) fn words(&self) -> String {
        let entry = |entry: &SentEntry| match &entry.value {
            super::action::SentValue::Known(value) => format!("{}={value}", entry.key),
            super::action::SentValue::From(_) => format!("{}=*", entry.key),
        };
        let entries: Vec<String> = self.entries.iter().map(entry).collect();
        entries.join(",")
    }
}

/// What happens to the limits of the virtual host.
fn virtual_host_option(own: &Value) -> &'static str {
    let names = ["OVERRIDE", "INCLUDE", "IGNORE"];
    let name = |field: &str, base: u64| {
        let value = member(own, field)?;
        let by_number = || names.get(usize::try_from(value.as_u64()?.checked_sub(base)?).ok()?);
        let by_name = || {
            let text = value.as_str()?;
            names.iter().find(|name| text == **name || text.strip_suffix("_POLICY") == Some(name))
        };
        by_name().or_else(by_number).copied()
    };
    name("override_option", 1).or_else(|| name("vh_rate_limits", 0)).unwrap_or("OVERRIDE")
}
