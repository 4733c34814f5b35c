//! The part of the Redis protocol that tests need to start and inspect servers: one command, one
//! reply.

use std::{
    fmt::Write as _,
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, Result, bail};

const TIMEOUT: Duration = Duration::from_secs(5);

/// A reply (RESP2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A simple or a bulk string; bytes that are not UTF-8 are replaced.
    Text(String),
    /// An integer.
    Integer(i64),
    /// Null.
    Nil,
    /// An array.
    List(Vec<Reply>),
}

impl Reply {
    /// The text as `redis-cli` prints it into a pipe: one line an element.
    #[must_use]
    pub fn lines(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Integer(number) => number.to_string(),
            Self::Nil => String::new(),
            Self::List(items) => items.iter().map(Self::lines).collect::<Vec<_>>().join("\n"),
        }
    }
}

/// Sends one command over a new connection to 127.0.0.1:`port`.
///
/// # Errors
/// When nothing listens, no answer comes within five seconds, or the answer is an error.
pub fn command(port: u16, arguments: &[&str]) -> Result<Reply> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)
        .with_context(|| format!("nothing answers on 127.0.0.1:{port}"))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    (&stream).write_all(encode(arguments).as_bytes())?;
    read(&mut BufReader::new(&stream))
        .with_context(|| format!("{} on port {port}", arguments.join(" ")))
}

fn encode(arguments: &[&str]) -> String {
    let mut out = format!("*{}\r\n", arguments.len());
    for argument in arguments {
        // Writing into a String cannot fail.
        let _ = write!(out, "${}\r\n{argument}\r\n", argument.len());
    }
    out
}

fn read(from: &mut impl BufRead) -> Result<Reply> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let line = line.trim_end();
    let Some((kind, rest)) = line.split_at_checked(1) else { bail!("the connection was closed") };
    match kind {
        "+" => Ok(Reply::Text(rest.to_owned())),
        "-" => bail!("Redis refuses: {rest}"),
        ":" => Ok(Reply::Integer(rest.parse()?)),
        "$" => match rest.parse::<i64>()? {
            ..0 => Ok(Reply::Nil),
            length => {
                let mut bytes = vec![0; usize::try_from(length)? + 2];
                from.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len().saturating_sub(2));
                Ok(Reply::Text(String::from_utf8_lossy(&bytes).into_owned()))
            }
        },
        "*" => match rest.parse::<i64>()? {
            ..0 => Ok(Reply::Nil),
            count => (0..count).map(|_| read(from)).collect::<Result<_>>().map(Reply::List),
        },
        _ => bail!("not a reply: {line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Reply> {
        read(&mut text.as_bytes())
    }

    #[test]
    fn every_kind_of_reply_is_read() {
        assert_eq!(parse("+PONG\r\n").unwrap(), Reply::Text("PONG".into()));
        assert_eq!(parse("$4\r\na\r\nb\r\n").unwrap(), Reply::Text("a\r\nb".into()));
        assert_eq!(parse("$-1\r\n").unwrap(), Reply::Nil);
        let list = parse("*2\r\n:-7\r\n*1\r\n+x\r\n").unwrap();
        assert_eq!(
            list,
            Reply::List(vec![Reply::Integer(-7), Reply::List(vec![Reply::Text("x".into())])])
        );
        assert_eq!(list.lines(), "-7\nx");
        assert!(parse("-ERR no\r\n").unwrap_err().to_string().contains("ERR no"));
        assert!(parse("").is_err());
    }

    #[test]
    fn command_is_an_array_of_bulk_strings() {
        assert_eq!(encode(&["GET", ""]), "*2\r\n$3\r\nGET\r\n$0\r\n\r\n");
    }
}
