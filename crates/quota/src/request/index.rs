//! Finds the policies that a request may be about without walking all of them.
//!
//! The index knows conditions on exact hosts and wildcard hosts, exact paths, path prefixes and
//! routes. It only rules out policies whose [`Matcher`] would say no, so the matcher still decides.
//!
//! The index never asks the host for a fact. It uses each fact as soon as the matcher of a policy
//! has fetched it.

use std::collections::BTreeMap;

use crate::request::facts::Facts;
use crate::request::matching::{HostPattern, Matcher, PathPattern};
use crate::request::path;

/// The most policies of a configuration.
pub const MAX_POLICIES: usize = 1024;

/// The index of all policies of a configuration.
#[derive(Debug)]
pub(crate) struct Index {
    /// How many words of a set have policies.
    words: usize,
    all: Set,
    paths: Values,
    hosts: Values,
    routes: Values,
}

/// The policies that a request may still be about, in the order of the document.
#[derive(Debug)]
pub(crate) struct Candidates<'i> {
    index: &'i Index,
    open: Set,
    /// The position after the last candidate.
    next: usize,
    /// Whether the path has ruled out what it can.
    by_path: bool,
    by_host: bool,
    by_route: bool,
}

/// A set of policies by their positions.
#[derive(Clone, Copy, Debug, Default)]
struct Set([u64; MAX_POLICIES / 64]);

/// The policies by the values that one of their conditions accepts.
#[derive(Debug, Default)]
struct Values {
    /// Policies without such a condition, or with one that the index does not know.
    others: Set,
    exact: BTreeMap<Box<[u8]>, Vec<u16>>,
    prefixes: Vec<PrefixPolicies>,
}

/// The policies that accept all values with this beginning. Sorted by it.
#[derive(Debug)]
struct PrefixPolicies {
    text: Box<[u8]>,
    policies: Vec<u16>,
    /// The position of the longest other prefix that this one begins with.
    shorter: Option<usize>,
}

impl Index {
    /// The index of the policies with these matchers.
    pub(crate) fn new<'m>(matchers: impl Iterator<Item = &'m Matcher>) -> Self {
        let (mut all, mut words) = (Set::default(), 0);
        let [mut paths, mut hosts, mut routes] = <[Conditions; 3]>::default();
        for (policy, matcher) in (0_u16..).zip(matchers) {
            all.insert(policy);
            words = usize::from(policy / 64) + 1;
            match &matcher.path {
                Some(PathPattern::Exact(path)) => paths.exact(policy, path),
                Some(PathPattern::Prefix(begin)) => paths.prefix(policy, begin.clone()),
                Some(PathPattern::Suffix(_) | PathPattern::Regex(_)) | None => {
                    paths.others.insert(policy);
                }
            }
            for host in &matcher.hosts {
                match host {
                    HostPattern::Exact(host) => hosts.exact(policy, host.as_bytes()),
                    HostPattern::Below(end) => hosts.prefix(policy, reversed(end.as_bytes())),
                }
            }
            if matcher.hosts.is_empty() {
                hosts.others.insert(policy);
            }
            for route in &matcher.routes {
                routes.exact(policy, route.as_bytes());
            }
            if matcher.routes.is_empty() {
                routes.others.insert(policy);
            }
        }
        let [paths, hosts, routes] = [paths, hosts, routes].map(Conditions::sort);
        Self { words, all, paths, hosts, routes }
    }

    /// The policies that a request may be about. Nothing is known of the request yet.
    pub(crate) fn candidates(&self) -> Candidates<'_> {
        Candidates {
            index: self,
            open: self.all,
            next: 0,
            by_path: self.paths.is_empty(),
            by_host: self.hosts.is_empty(),
            by_route: self.routes.is_empty(),
        }
    }
}

impl Candidates<'_> {
    /// The next policy that the request may be about, as far as `facts` are known already.
    pub(crate) fn next(&mut self, facts: &Facts<'_>) -> Option<usize> {
        self.first_open()?;
        self.narrow(facts);
        let policy = self.first_open()?;
        self.next = policy + 1;
        Some(policy)
    }

    /// The first candidate from here on.
    fn first_open(&self) -> Option<usize> {
        let (mut at, mut rest) = (self.next / 64, u64::MAX << (self.next % 64));
        while at < self.index.words {
            let word = self.open.0.get(at)? & rest;
            if word != 0 {
                return Some(at * 64 + word.trailing_zeros() as usize);
            }
            (at, rest) = (at + 1, u64::MAX);
        }
        None
    }

    fn narrow(&mut self, facts: &Facts<'_>) {
        let Index { paths, hosts, routes, .. } = self.index;
        if !self.by_path
            && let Some(path) = facts.known_path()
        {
            self.by_path = true;
            let readings = facts.other_readings().iter().map(Vec::as_slice);
            self.open.keep(paths, path.into_iter().chain(readings), |path, found| {
                paths.find_exact(path::without_slash(path), found);
                paths.find_prefixes(path, found);
            });
        }
        if !self.by_host
            && let Some(host) = facts.known_host()
        {
            self.by_host = true;
            self.open.keep(hosts, host.into_iter(), |host, found| {
                hosts.find_exact(host, found);
                if !hosts.prefixes.is_empty() {
                    hosts.find_prefixes(&reversed(host), found);
                }
            });
        }
        if !self.by_route
            && let Some(route) = facts.known_route()
        {
            self.by_route = true;
            self.open.keep(routes, route.into_iter(), |route, found| {
                routes.find_exact(route, found);
            });
        }
    }
}

impl Set {
    fn insert(&mut self, policy: u16) {
        if let Some(word) = self.0.get_mut(usize::from(policy / 64)) {
            *word |= 1 << (policy % 64);
        }
    }

    /// Keeps the policies that `find` finds by one of the request's values, and those that the
    /// index does not know by such values.
    fn keep<'v>(
        &mut self,
        known: &Values,
        values: impl Iterator<Item = &'v [u8]>,
        find: impl Fn(&[u8], &mut Self),
    ) {
        let mut found = known.others;
        values.for_each(|value| find(value, &mut found));
        for (word, found) in self.0.iter_mut().zip(found.0) {
            *word &= found;
        }
    }
}

impl Values {
    /// Whether no policy has a condition on such values.
    fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.prefixes.is_empty()
    }

    fn find_exact(&self, value: &[u8], found: &mut Set) {
        for policy in self.exact.get(value).into_iter().flatten() {
            found.insert(*policy);
        }
    }

    /// Of all prefixes that are not greater than `value`, the greatest begins with the longest that
    /// `value` begins with, or is that one. The others are shorter ones of it.
    fn find_prefixes(&self, value: &[u8], found: &mut Set) {
        let after = self.prefixes.partition_point(|prefix| *prefix.text <= *value);
        let mut at = after.checked_sub(1);
        while let Some(prefix) = at.and_then(|at| self.prefixes.get(at)) {
            if value.starts_with(&prefix.text) {
                prefix.policies.iter().for_each(|policy| found.insert(*policy));
            }
            at = prefix.shorter;
        }
    }
}

/// [`Values`] while they are being collected.
#[derive(Default)]
struct Conditions {
    others: Set,
    exact: BTreeMap<Box<[u8]>, Vec<u16>>,
    prefixes: BTreeMap<Box<[u8]>, Vec<u16>>,
}

impl Conditions {
    fn exact(&mut self, policy: u16, value: &[u8]) {
        self.exact.entry(value.into()).or_default().push(policy);
    }

    fn prefix(&mut self, policy: u16, begin: Box<[u8]>) {
        self.prefixes.entry(begin).or_default().push(policy);
    }

    fn sort(self) -> Values {
        let mut prefixes: Vec<PrefixPolicies> = Vec::with_capacity(self.prefixes.len());
        for (text, policies) in self.prefixes {
            let mut shorter = prefixes.len().checked_sub(1);
            while let Some(prefix) = shorter.and_then(|at| prefixes.get(at))
                && !text.starts_with(&prefix.text)
            {
                shorter = prefix.shorter;
            }
            prefixes.push(PrefixPolicies { text, policies, shorter });
        }
        Values { others: self.others, exact: self.exact, prefixes }
    }
}

fn reversed(text: &[u8]) -> Box<[u8]> {
    text.iter().rev().copied().collect()
}
