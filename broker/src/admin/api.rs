//! Which paths Apache Pulsar's admin API has: what of it is not served answers so, rather than 404.

use axum::http::Method;
use std::sync::LazyLock;

/// One path, in segments; a segment in braces stands for anything.
struct Path {
    segments: Vec<&'static str>,
    methods: Vec<&'static str>,
}

static PATHS: LazyLock<Vec<Path>> = LazyLock::new(|| {
    let lines = include_str!("api.txt").lines();
    let lines = lines.filter(|line| !line.starts_with('#'));
    let path = |line: &'static str| {
        let (path, methods) = line.split_once(' ')?;
        Some(Path {
            segments: path.split('/').collect(),
            methods: methods.split(',').collect(),
        })
    };
    lines.filter_map(path).collect()
});

impl Path {
    fn matches(&self, path: &[&str]) -> bool {
        self.segments.len() == path.len()
            && self
                .segments
                .iter()
                .zip(path)
                .all(|(segment, given)| segment.starts_with('{') || segment == given)
    }
}

/// Whether Pulsar's API has this path, and a method for it.
pub(super) fn knows(method: &Method, path: &str) -> bool {
    let method = if *method == Method::HEAD {
        "GET"
    } else {
        method.as_str()
    };
    let path: Vec<&str> = path.split('/').collect();
    // Sources, sinks, functions and packages have too many paths to list.
    if let [
        "",
        "admin",
        "v3",
        "functions" | "sources" | "sinks" | "packages",
        ..,
    ] = path.as_slice()
    {
        return true;
    }
    PATHS
        .iter()
        .any(|known| known.methods.contains(&method) && known.matches(&path))
}

/// The methods of a path of Pulsar's API; `None`: it has no such path.
pub(super) fn methods(path: &str) -> Option<String> {
    let path: Vec<&str> = path.split('/').collect();
    let known = PATHS.iter().filter(|known| known.matches(&path));
    let methods: std::collections::BTreeSet<&str> = known
        .flat_map(|known| known.methods.iter().copied())
        .collect();
    let methods: Vec<&str> = methods.into_iter().collect();
    (!methods.is_empty()).then(|| methods.join(","))
}

#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = (String, &'static str)> {
    PATHS.iter().flat_map(|path| {
        let text = path.segments.join("/");
        path.methods
            .iter()
            .map(move |method| (text.clone(), *method))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_known_by_shape() {
        assert!(knows(&Method::GET, "/admin/v2/broker-stats/mbeans"));
        assert!(knows(&Method::HEAD, "/admin/v2/persistent/a/b/c/stats"));
        assert!(!knows(&Method::GET, "/admin/v2/persistent/a/b/c/stats/d"));
        assert!(!knows(&Method::PATCH, "/admin/v2/tenants/a"));
        assert!(!knows(&Method::GET, "/admin/v2/nosuchresource"));
        assert!(all().count() > 500);
    }
}
