//! RESP 2 as redis speaks it: GET and SET.

use crate::load::keys::KeyName;
use crate::load::payload::Payloads;
use crate::load::protocol::{Dialect, Parsed, Reply, Requests, Template, line, number};

pub struct Redis {
    requests: Requests,
}

impl Dialect for Redis {
    fn new(name: &KeyName, payloads: &Payloads) -> Self {
        let get = Template::new(name, |length| (format!("*2\r\n$3\r\nGET\r\n${length}\r\n"), "\r\n".into()));
        let set = Template::new(name, |length| (format!("*3\r\n$3\r\nSET\r\n${length}\r\n"), "\r\n".into()));
        Self { requests: Requests::new(get, set, payloads, |size| format!("${size}\r\n")) }
    }

    #[inline]
    fn requests(&self) -> &Requests {
        &self.requests
    }

    #[inline]
    fn parse<'a>(&self, input: &'a [u8]) -> Parsed<'a> {
        if input.starts_with(b"+OK\r\n") {
            return Parsed::Whole(Reply::Stored, 5);
        }
        let Some((head, next)) = line(input) else {
            return Parsed::Partial;
        };
        match head.split_first() {
            Some((b'$', b"-1")) => Parsed::Whole(Reply::Miss, next),
            Some((b'$', digits)) => {
                let Some(size) = number(digits) else {
                    return Parsed::Wrong;
                };
                match input.get(next..next + size + 2) {
                    None => Parsed::Partial,
                    Some(value) if value.ends_with(b"\r\n") => {
                        Parsed::Whole(Reply::Value(&value[..size]), next + size + 2)
                    }
                    Some(_) => Parsed::Wrong,
                }
            }
            Some((b'-', words)) => Parsed::Refused(words),
            _ => Parsed::Wrong,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::common::fuzz;

    fn redis() -> (Redis, Payloads) {
        let payloads = Payloads::new(&"5:1".parse().unwrap(), 1);
        (Redis::new(&"k%03d".parse().unwrap(), &payloads), payloads)
    }

    #[test]
    fn requests_are_as_the_protocol_says() {
        let (redis, payloads) = redis();
        let mut out = Vec::new();
        redis.requests().get(&mut out, 42);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$4\r\nk042\r\n");
        out.clear();
        redis.requests().set(&mut out, 1234, payloads.of(1234), b"hello");
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$5\r\nk1234\r\n$5\r\nhello\r\n");
    }

    #[test]
    fn replies_are_told_apart_and_waited_for() {
        let (redis, _) = redis();
        assert_eq!(redis.parse(b"+OK\r\n$-1"), Parsed::Whole(Reply::Stored, 5));
        assert_eq!(redis.parse(b"$-1\r\n"), Parsed::Whole(Reply::Miss, 5));
        assert_eq!(redis.parse(b"$5\r\nhello\r\n+"), Parsed::Whole(Reply::Value(b"hello"), 11));
        for cut in 1..11 {
            assert_eq!(redis.parse(&b"$5\r\nhello\r\n"[..cut]), Parsed::Partial, "{cut}");
        }
        assert_eq!(redis.parse(b"-OOM command not allowed\r\n"), Parsed::Refused(b"OOM command not allowed"));
        assert_eq!(redis.parse(b":1\r\n"), Parsed::Wrong);
        assert_eq!(redis.parse(b"$2\r\nhello\r\n"), Parsed::Wrong);
    }

    proptest! {
        #![proptest_config(fuzz::config())]

        #[test]
        fn whatever_a_server_answers_no_more_is_taken_than_came(input in fuzz::broken(&["+OK\r\n$-1\r\n", "$5\r\nhello\r\n", "-OOM command\r\n", "$999999999\r\nx"])) {
            if let Parsed::Whole(_, end) = redis().0.parse(&input) {
                prop_assert!(0 < end && end <= input.len());
            }
        }
    }
}
