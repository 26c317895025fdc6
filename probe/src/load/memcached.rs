//! memcached's classic text protocol: get and set, as the published studies used it.

use crate::load::keys::KeyName;
use crate::load::payload::Payloads;
use crate::load::protocol::{Dialect, Parsed, Reply, Requests, Template, line, number};

pub struct Memcached {
    requests: Requests,
}

const END: &[u8] = b"END\r\n";

impl Dialect for Memcached {
    fn new(name: &KeyName, payloads: &Payloads) -> Self {
        let get = Template::new(name, |_| ("get ".into(), "\r\n".into()));
        let set = Template::new(name, |_| ("set ".into(), String::new()));
        // Flags and lifetime go before the size.
        Self { requests: Requests::new(get, set, payloads, |size| format!(" 0 0 {size}\r\n")) }
    }

    #[inline]
    fn requests(&self) -> &Requests {
        &self.requests
    }

    #[inline]
    fn parse<'a>(&self, input: &'a [u8]) -> Parsed<'a> {
        let Some((head, next)) = line(input) else {
            return Parsed::Partial;
        };
        if !head.starts_with(b"VALUE ") {
            return match head {
                b"STORED" => Parsed::Whole(Reply::Stored, next),
                b"END" => Parsed::Whole(Reply::Miss, next),
                _ if head.starts_with(b"SERVER_ERROR") || head.starts_with(b"CLIENT_ERROR") => Parsed::Refused(head),
                b"ERROR" | b"NOT_STORED" => Parsed::Refused(head),
                _ => Parsed::Wrong,
            };
        }
        // VALUE key flags size; the key has no blanks.
        let digits = head.iter().rposition(|byte| *byte == b' ').map_or(&head[..0], |blank| &head[blank + 1..]);
        let Some(size) = number(digits) else {
            return Parsed::Wrong;
        };
        let end = next + size + 2 + END.len();
        match input.get(next..end) {
            None => Parsed::Partial,
            Some(rest) if rest[size..].starts_with(b"\r\n") && rest.ends_with(END) => {
                Parsed::Whole(Reply::Value(&rest[..size]), end)
            }
            Some(_) => Parsed::Wrong,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::common::fuzz;

    fn memcached() -> (Memcached, Payloads) {
        let payloads = Payloads::new(&"5:1".parse().unwrap(), 1);
        (Memcached::new(&"memtier-%d".parse().unwrap(), &payloads), payloads)
    }

    #[test]
    fn requests_are_as_the_protocol_says() {
        let (memcached, payloads) = memcached();
        let mut out = Vec::new();
        memcached.requests().get(&mut out, 42);
        memcached.requests().set(&mut out, 0, payloads.of(0), b"hello");
        assert_eq!(out, b"get memtier-42\r\nset memtier-0 0 0 5\r\nhello\r\n");
    }

    #[test]
    fn replies_are_told_apart_and_waited_for() {
        let (memcached, _) = memcached();
        assert_eq!(memcached.parse(b"STORED\r\nEND\r\n"), Parsed::Whole(Reply::Stored, 8));
        assert_eq!(memcached.parse(b"END\r\n"), Parsed::Whole(Reply::Miss, 5));
        let value = b"VALUE memtier-42 0 5\r\nhello\r\nEND\r\n";
        assert_eq!(memcached.parse(value), Parsed::Whole(Reply::Value(b"hello"), value.len()));
        for cut in 1..value.len() {
            assert_eq!(memcached.parse(&value[..cut]), Parsed::Partial, "{cut}");
        }
        let full = b"SERVER_ERROR out of memory storing object\r\n";
        assert_eq!(memcached.parse(full), Parsed::Refused(&full[..full.len() - 2]));
        assert_eq!(memcached.parse(b"+OK\r\n"), Parsed::Wrong);
    }

    proptest! {
        #![proptest_config(fuzz::config())]

        #[test]
        fn whatever_a_server_answers_no_more_is_taken_than_came(input in fuzz::broken(&["STORED\r\nEND\r\n", "VALUE memtier-42 0 5\r\nhello\r\nEND\r\n", "SERVER_ERROR no\r\n"])) {
            if let Parsed::Whole(_, end) = memcached().0.parse(&input) {
                prop_assert!(0 < end && end <= input.len());
            }
        }
    }
}
