//! Can data written with one schema be read with another?
//!
//! The rules are those of the Avro specification, in the reading of Avro's Java library, which Pulsar brokers use: records match whatever
//! their names, except that a union prefers a branch of the same name; an unknown symbol of an enum is an error of the data, not of the
//! schema.

use std::collections::{BTreeMap, BTreeSet};

use super::{Avro, AvroError, Field, Kind};

/// Pairs of types, fields and branches that one new schema is compared by, with all that it has to fit; beyond, the schemas count as too complex to compare.
pub const MAX_PAIRS: usize = 200_000;
/// Types within types that one comparison follows.
const MAX_DEPTH: usize = 400;

struct Resolver<'a> {
    writer: &'a Avro,
    reader: &'a Avro,
    /// Pairs of records that were looked at.
    seen: BTreeSet<(usize, usize)>,
    /// Pairs of records: whether they fit at first sight. Those under way count as if they did.
    alike: BTreeMap<(usize, usize), bool>,
    /// Pairs of records: whether they are equivalent.
    equal: BTreeMap<(usize, usize), bool>,
    left: usize,
    problem: Option<String>,
}

/// Can `reader` read what `writer` wrote?
///
/// # Errors
/// Why not: the first place that does not fit.
#[cfg(test)]
pub fn can_read(writer: &Avro, reader: &Avro) -> Result<(), AvroError> {
    can_read_within(writer, reader, &mut MAX_PAIRS.clone())
}

/// The same; `left` = the pairs that may be looked at, and what is left of them.
///
/// # Errors
/// Likewise.
pub fn can_read_within(writer: &Avro, reader: &Avro, left: &mut usize) -> Result<(), AvroError> {
    let renamed;
    let writer = match Aliases::of(reader) {
        Some(aliases) => {
            renamed = aliases.apply(writer);
            &renamed
        }
        None => writer,
    };
    let mut resolver = Resolver {
        writer,
        reader,
        seen: BTreeSet::new(),
        alike: BTreeMap::new(),
        equal: BTreeMap::new(),
        left: *left,
        problem: None,
    };
    let mut open = vec![(writer.root, reader.root)];
    let mut fits = true;
    while fits && let Some((w, r)) = open.pop() {
        fits = resolver.resolves(w, r, &mut open);
    }
    *left = resolver.left;
    if fits {
        return Ok(());
    }
    let problem = resolver.problem.take();
    Err(AvroError(
        problem.unwrap_or_else(|| "the schemas do not fit".into()),
    ))
}

impl Resolver<'_> {
    fn no(&mut self, problem: impl FnOnce() -> String) -> bool {
        if self.problem.is_none() {
            self.problem = Some(problem());
        }
        false
    }

    /// Takes one step; false when there were too many.
    fn step(&mut self, depth: usize) -> bool {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 || depth > MAX_DEPTH {
            return self.no(|| {
                format!(
                    "the schemas are too complex to compare (more than {MAX_PAIRS} pairs of types, or {MAX_DEPTH} within each other)"
                )
            });
        }
        true
    }

    /// Work that is not a pair by itself: fields and branches that are gone through. The next step sees that it was too much.
    fn spend(&mut self, work: usize) {
        self.left = self.left.saturating_sub(work);
    }

    /// Looks at one pair of types; the pairs that it depends on are left in `open`.
    fn resolves(&mut self, w: usize, r: usize, open: &mut Vec<(usize, usize)>) -> bool {
        if !self.step(0) {
            return false;
        }
        let (writer, reader) = (self.writer, self.reader);
        let (wk, rk) = (writer.kind(w), reader.kind(r));
        match (wk, rk) {
            // The same union, in other namespaces perhaps: branch goes to branch.
            (Kind::Union(_), Kind::Union(_)) if self.equivalent(w, r, 0) => true,
            (Kind::Union(branches), _) => {
                open.extend(branches.iter().map(|branch| (*branch, r)));
                true
            }
            (Kind::Record { name, fields, .. }, Kind::Record { fields: own, .. }) => {
                if !self.seen.insert((w, r)) {
                    return true;
                }
                self.spend(fields.len() + own.len());
                if let Some(missing) = missing_field(wk, rk) {
                    return self.no(|| {
                        format!("the reader's field {missing} of {name} has no default and the writer does not have it")
                    });
                }
                open.extend(common(fields, own));
                true
            }
            (Kind::Array(w), Kind::Array(r)) | (Kind::Map(w), Kind::Map(r)) => {
                open.push((*w, *r));
                true
            }
            (_, Kind::Union(branches)) => match self.branch(w, branches, 0) {
                Some(branch) => {
                    open.push((w, branch));
                    true
                }
                None => self.no(|| format!("no branch of the reader's union takes {}", said(wk))),
            },
            _ if simple(wk, rk) => true,
            _ => self.no(|| format!("{} cannot be read as {}", said(wk), said(rk))),
        }
    }

    /// Two types of the same shape and the same names, namespaces left aside.
    fn equivalent(&mut self, w: usize, r: usize, depth: usize) -> bool {
        if depth > MAX_DEPTH || self.left == 0 {
            return false;
        }
        self.left -= 1;
        let (writer, reader) = (self.writer, self.reader);
        let pairwise = |w: &[usize], r: &[usize]| -> Vec<(usize, usize)> {
            w.iter().copied().zip(r.iter().copied()).collect()
        };
        let inner = match (writer.kind(w), reader.kind(r)) {
            (Kind::Array(w), Kind::Array(r)) | (Kind::Map(w), Kind::Map(r)) => vec![(*w, *r)],
            (Kind::Union(w), Kind::Union(r)) if w.len() == r.len() => pairwise(w, r),
            (Kind::Enum { symbols: a, .. }, Kind::Enum { symbols: b, .. }) if a != b => {
                return false;
            }
            (
                Kind::Record { name, fields, .. },
                Kind::Record {
                    name: own_name,
                    fields: own,
                    ..
                },
            ) => {
                if let Some(known) = self.equal.get(&(w, r)) {
                    return *known;
                }
                let names = |fields: &[Field]| -> Vec<String> {
                    fields.iter().map(|field| field.name.clone()).collect()
                };
                let fits = local(name) == local(own_name) && names(fields) == names(own);
                self.equal.insert((w, r), fits);
                let types = |fields: &[Field]| -> Vec<usize> {
                    fields.iter().map(|field| field.schema).collect()
                };
                let inner = pairwise(&types(fields), &types(own));
                let fits = fits
                    && inner
                        .into_iter()
                        .all(|(w, r)| self.equivalent(w, r, depth + 1));
                self.equal.insert((w, r), fits);
                return fits;
            }
            (w, r) => return simple(w, r) && w.name() == r.name(),
        };
        inner
            .into_iter()
            .all(|(w, r)| self.equivalent(w, r, depth + 1))
    }

    /// The branch of the reader's union that takes the type.
    fn branch(&mut self, w: usize, branches: &[usize], depth: usize) -> Option<usize> {
        let (writer, reader) = (self.writer, self.reader);
        self.spend(branches.len());
        let wk = writer.kind(w);
        let mut structure: Option<usize> = None;
        for branch in branches {
            match (wk, reader.kind(*branch)) {
                (Kind::Record { name: a, .. }, Kind::Record { name: b, .. }) => {
                    if a == b {
                        return Some(*branch);
                    }
                    if (structure.is_none() || local(a) == local(b))
                        && self.looks_alike(w, *branch, depth + 1)
                    {
                        structure = Some(*branch);
                    }
                }
                (Kind::Enum { name: a, .. }, Kind::Enum { name: b, .. })
                | (Kind::Fixed { name: a, .. }, Kind::Fixed { name: b, .. })
                    if a == b =>
                {
                    return Some(*branch);
                }
                (Kind::Enum { .. } | Kind::Fixed { .. }, _) => {}
                (wk, rk) if wk.name() == rk.name() => return Some(*branch),
                _ => {}
            }
        }
        structure.or_else(|| {
            branches
                .iter()
                .copied()
                .find(|branch| promotes(wk, reader.kind(*branch)))
        })
    }

    /// Two records of which no field is out of the question at first sight.
    fn looks_alike(&mut self, w: usize, r: usize, depth: usize) -> bool {
        if let Some(known) = self.alike.get(&(w, r)) {
            return *known;
        }
        if !self.step(depth) {
            return false;
        }
        let (writer, reader) = (self.writer, self.reader);
        let (wk, rk) = (writer.kind(w), reader.kind(r));
        let (Kind::Record { fields, .. }, Kind::Record { fields: own, .. }) = (wk, rk) else {
            return false;
        };
        self.spend(fields.len() + own.len());
        self.alike.insert((w, r), true);
        let alike = missing_field(wk, rk).is_none()
            && common(fields, own)
                .into_iter()
                .all(|(w, r)| self.at_first_sight(w, r, depth + 1));
        self.alike.insert((w, r), alike);
        alike
    }

    /// Fits as far as can be said without looking into the types.
    fn at_first_sight(&mut self, w: usize, r: usize, depth: usize) -> bool {
        let (wk, rk) = (self.writer.kind(w), self.reader.kind(r));
        match (wk, rk) {
            (Kind::Union(_), _)
            | (Kind::Array(_), Kind::Array(_))
            | (Kind::Map(_), Kind::Map(_)) => true,
            (Kind::Record { .. }, Kind::Record { .. }) => missing_field(wk, rk).is_none(),
            (_, Kind::Union(branches)) => self.branch(w, branches, depth).is_some(),
            _ => simple(wk, rk),
        }
    }
}

/// The types of the fields that both records have.
fn common(fields: &[Field], own: &[Field]) -> Vec<(usize, usize)> {
    let own: BTreeMap<&str, usize> = own.iter().map(|f| (f.name.as_str(), f.schema)).collect();
    let fields = fields.iter();
    fields
        .filter_map(|field| Some((field.schema, *own.get(field.name.as_str())?)))
        .collect()
}

/// A field of the reader's record that the writer's lacks and that has no default.
fn missing_field<'a>(w: &Kind, r: &'a Kind) -> Option<&'a str> {
    let (Kind::Record { fields, .. }, Kind::Record { fields: own, .. }) = (w, r) else {
        return None;
    };
    let names: BTreeSet<&str> = fields.iter().map(|f| f.name.as_str()).collect();
    own.iter()
        .find(|own| own.default.is_none() && !names.contains(own.name.as_str()))
        .map(|own| own.name.as_str())
}

/// Types without types in them.
fn simple(w: &Kind, r: &Kind) -> bool {
    match (w, r) {
        (Kind::Enum { name: a, .. }, Kind::Enum { name: b, .. }) => local(a) == local(b),
        (
            Kind::Fixed {
                name: a, size: n, ..
            },
            Kind::Fixed {
                name: b, size: m, ..
            },
        ) => local(a) == local(b) && n == m,
        _ => (w.name() == r.name() && Kind::primitive(w.name()).is_some()) || promotes(w, r),
    }
}

fn promotes(w: &Kind, r: &Kind) -> bool {
    matches!(
        (w, r),
        (Kind::Int, Kind::Long | Kind::Float | Kind::Double)
            | (Kind::Long, Kind::Float | Kind::Double)
            | (Kind::Float, Kind::Double)
            | (Kind::String, Kind::Bytes)
            | (Kind::Bytes, Kind::String)
    )
}

fn local(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// A type in an error text.
fn said(kind: &Kind) -> String {
    match kind {
        Kind::Record { name, .. } | Kind::Enum { name, .. } => format!("{} {name}", kind.name()),
        Kind::Fixed { name, size, .. } => format!("fixed {name} of {size} bytes"),
        other => other.name().to_owned(),
    }
}

/// Names that a reader knows under others.
struct Aliases<'a> {
    types: BTreeMap<&'a str, &'a str>,
    fields: BTreeMap<(&'a str, &'a str), &'a str>,
}

impl<'a> Aliases<'a> {
    fn of(reader: &'a Avro) -> Option<Self> {
        let mut found = Aliases {
            types: BTreeMap::new(),
            fields: BTreeMap::new(),
        };
        for node in &reader.nodes {
            if let Kind::Record { name, fields, .. } = &node.kind {
                for field in fields {
                    for alias in &field.aliases {
                        found.fields.insert((name, alias), &field.name);
                    }
                }
            }
            if let Kind::Record { name, aliases, .. }
            | Kind::Enum { name, aliases, .. }
            | Kind::Fixed { name, aliases, .. } = &node.kind
            {
                let pairs = aliases.iter().map(|alias| (alias.as_str(), name.as_str()));
                found.types.extend(pairs);
            }
        }
        (!found.types.is_empty() || !found.fields.is_empty()).then_some(found)
    }

    /// The writer's schema in the reader's names.
    fn apply(&self, writer: &Avro) -> Avro {
        let mut renamed = writer.clone();
        for node in &mut renamed.nodes {
            if let Kind::Record { name, .. } | Kind::Enum { name, .. } | Kind::Fixed { name, .. } =
                &mut node.kind
                && let Some(new) = self.types.get(name.as_str())
            {
                *name = (*new).to_owned();
            }
            if let Kind::Record { name, fields, .. } = &mut node.kind {
                for field in fields {
                    if let Some(new) = self.fields.get(&(name.as_str(), field.name.as_str())) {
                        field.name = (*new).to_owned();
                    }
                }
            }
        }
        renamed
    }
}
