//! The arrangement of the source: modules form rooms (the folders of src/), arrows between rooms point downwards, and
//! nowhere does a way lead from a module back to it.
//!
//! An arrow is a path that one module writes to another, in a `use` or in the code, absolute (`crate::`), relative
//! (`super::`, `self::`) or by a child's name. That a mod.rs declares its children is none. Unit tests may look anywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each room sees those above its own line of this table, and no other.
const LAYERS: [&[&str]; 7] = [
    &["common"],
    &["protocol"],
    &["machine", "process"],
    &["counters", "sample", "scan"],
    &["age", "agent", "launch", "load", "work"],
    &["cli"],
    &["main"],
];

/// A module's path from the root of the crate, which is empty for main.rs.
type Module = Vec<String>;
type Arrows = BTreeMap<Module, BTreeSet<Module>>;

#[test]
fn no_way_leads_back_to_where_it_began() {
    let arrows = arrows();
    for module in arrows.keys() {
        if let Some(way) = way(&arrows, module, module, &mut BTreeSet::new()) {
            panic!("a circle: {} -> {}", name(module), way.join(" -> "));
        }
    }
}

#[test]
fn arrows_between_rooms_point_downwards() {
    for (from, targets) in arrows() {
        for to in targets.iter().filter(|to| room(to) != room(&from)) {
            assert!(layer(to) < layer(&from), "{} uses {}, which is not below it", name(&from), name(to));
        }
    }
}

#[test]
fn every_room_has_its_door_plate() {
    for (module, (file, text)) in sources() {
        assert!(text.starts_with("//! "), "{}: does not say what lives here", file.display());
        let is_plate = !file.ends_with("mod.rs") || text.contains("may be imported here");
        assert!(is_plate, "{}: does not say what may be imported", name(&module));
    }
}

#[test]
fn paths_are_found_in_every_form() {
    let code = "use super::a::{self, b::{C, D as E}, f::*};\nfn x() { bail!(crate::g::H); kid::go(std::kid::no()) }
        // crate::comment::X\n#[cfg(test)]\nmod tests {\n    use crate::tests::X;\n}\nuse self::last;\n";
    let found = paths(code, &["here".into(), "there".into()], &BTreeSet::from(["kid".into()]));
    let found: Vec<String> = found.iter().map(|path| path.join("::")).collect();
    let expected = [
        "here::a",
        "here::a::b::C",
        "here::a::b::D",
        "here::a::f",
        "g::H",
        "here::there::kid::go",
        "here::there::last",
    ];
    assert_eq!(found, expected);
}

fn name(module: &[String]) -> String {
    if module.is_empty() { "main".into() } else { module.join("::") }
}

fn room(module: &[String]) -> &str {
    module.first().map_or("main", String::as_str)
}

fn layer(module: &[String]) -> usize {
    let room = room(module);
    LAYERS.iter().position(|rooms| rooms.contains(&room)).unwrap_or_else(|| panic!("{room} has no place in LAYERS"))
}

/// The modules after `from` on a way to `to`, if there is one.
fn way(arrows: &Arrows, from: &Module, to: &Module, seen: &mut BTreeSet<Module>) -> Option<Vec<String>> {
    for next in arrows.get(from).into_iter().flatten() {
        if next == to {
            return Some(vec![name(to)]);
        }
        if seen.insert(next.clone())
            && let Some(rest) = way(arrows, next, to, seen)
        {
            return Some([vec![name(next)], rest].concat());
        }
    }
    None
}

/// Every module with its file and text.
fn sources() -> BTreeMap<Module, (PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut open, mut found) = (vec![root.clone()], BTreeMap::new());
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let inside = path.strip_prefix(&root).unwrap().with_extension("");
            let names = inside.iter().map(|part| part.to_str().unwrap().to_owned());
            let module = names.filter(|part| part != "mod" && part != "main").collect();
            let text = fs::read_to_string(&path).unwrap();
            found.insert(module, (path, text));
        }
    }
    found
}

fn arrows() -> Arrows {
    let sources = sources();
    let targets = |module: &Module, text: &str| {
        let is_child = |other: &&Module| other.split_last().is_some_and(|(_, parent)| parent == module);
        let children = sources.keys().filter(is_child).filter_map(|child| child.last().cloned()).collect();
        let reached = |path: Vec<String>| {
            (0..=path.len()).rev().map(|length| path[..length].to_vec()).find(|start| sources.contains_key(start))
        };
        let others = paths(text, module, &children).into_iter().filter_map(reached);
        others.filter(|other| other != module).collect()
    };
    sources.iter().map(|(module, (_, text))| (module.clone(), targets(module, text))).collect()
}

/// The paths from the root of the crate that `text`, the code of `module`, names outside of its unit tests.
fn paths(text: &str, module: &[String], children: &BTreeSet<String>) -> Vec<Vec<String>> {
    let (mut code, mut is_test) = (String::new(), false);
    for line in text.lines() {
        is_test = (is_test || line == "mod tests {") && line != "}";
        if !is_test {
            code.push_str(line.split("//").next().unwrap_or_default());
            code.push('\n');
        }
    }
    let tokens = tokens(&code);
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let is_first = at == 0 || tokens[at - 1] != "::";
        let leads_on = tokens.get(at + 1).is_some_and(|next| next == "::");
        let (from, base) = match token.as_str() {
            "crate" => (at + 2, Vec::new()),
            "self" | "super" => (at, module.to_vec()),
            _ if children.contains(token) => (at, module.to_vec()),
            _ => continue,
        };
        if is_first && leads_on {
            follow(&tokens, from, base, &mut found);
        }
    }
    found
}

/// Keep the paths that begin with `base` and go on at `at`, where a `use` may branch; where the tokens go on after them.
fn follow(tokens: &[String], mut at: usize, mut base: Vec<String>, found: &mut Vec<Vec<String>>) -> usize {
    loop {
        match tokens.get(at).map_or("", String::as_str) {
            "{" => {
                while !["", "}"].contains(&tokens.get(at).map_or("", String::as_str)) {
                    at = follow(tokens, at + 1, base.clone(), found);
                    while !["", ",", "}"].contains(&tokens.get(at).map_or("", String::as_str)) {
                        at += 1; // `as` and a new name
                    }
                }
                return at + 1;
            }
            "super" => drop(base.pop()),
            "self" | "*" => {}
            "}" => return at,
            part => base.push(part.into()),
        }
        if tokens.get(at + 1).is_none_or(|next| next != "::") {
            found.push(base);
            return at + 1;
        }
        at += 2;
    }
}

/// Words, `::`, and single other characters.
fn tokens(code: &str) -> Vec<String> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let (mut found, mut rest) = (Vec::new(), code.trim_start());
    while let Some(first) = rest.chars().next() {
        let length = match first {
            _ if rest.starts_with("::") => 2,
            _ if is_word(first) => rest.find(|letter| !is_word(letter)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        found.push(rest[..length].to_owned());
        rest = rest[length..].trim_start();
    }
    found
}
