#!/bin/sh
# Prints a token with these claims, signed with the demo's key: token.sh '{"sub": "alice"}'
set -eu
base64url() { openssl base64 -A | tr '+/' '-_' | tr -d '='; }
header=$(printf '{"alg": "HS256", "typ": "JWT"}' | base64url)
claims=$(printf '{"iss": "quotagate-demo", %s' "${1#\{}" | base64url)
signature=$(printf '%s.%s' "$header" "$claims" |
    openssl dgst -sha256 -hmac quotagate-demo-key-do-not-deploy -binary | base64url)
printf '%s.%s.%s\n' "$header" "$claims" "$signature"
