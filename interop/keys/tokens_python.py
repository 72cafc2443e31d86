"""OpenAI's client with tokens that PyJWT signs, and with client certificates, against weir.

It is the issuer of the tokens too: it serves its description and its keys, which rotate. It
prints a JSON object for each check and last {"checks": COUNT}.
"""

import argparse
import base64
import hmac
import http.server
import json
import ssl
import threading
import time
import urllib.parse

import jwt
import openai
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

args = argparse.ArgumentParser()
args.add_argument("--base-url", required=True)
args.add_argument("--issuer", required=True)
args.add_argument("--certificates", required=True)
args = args.parse_args()

KEYS = {
    "rsa": ("RS256", rsa.generate_private_key(65537, 2048), RSAAlgorithm),
    "pss": ("PS384", rsa.generate_private_key(65537, 2048), RSAAlgorithm),
    "ec": ("ES256", ec.generate_private_key(ec.SECP256R1()), ECAlgorithm),
    "ec512": ("ES512", ec.generate_private_key(ec.SECP521R1()), ECAlgorithm),
    "ed": ("EdDSA", ed25519.Ed25519PrivateKey.generate(), OKPAlgorithm),
    "later": ("ES256", ec.generate_private_key(ec.SECP256R1()), ECAlgorithm),
}
published = ["rsa", "pss", "ec", "ec512", "ed"]


def jwk(kid):
    alg, key, kind = KEYS[kid]
    return {**kind.to_jwk(key.public_key(), as_dict=True), "kid": kid, "alg": alg, "use": "sig"}


class Issuer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/.well-known/openid-configuration":
            answer = {"issuer": args.issuer, "jwks_uri": args.issuer + "/jwks"}
        else:
            answer = {"keys": [jwk(kid) for kid in published]}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def token(kid="rsa", alg=None, key=None, **changes):
    now = int(time.time())
    claims = {"iss": args.issuer, "aud": "weir", "sub": "alice", "org": "acme", "iat": now, "exp": now + 600, **changes}
    claims = {name: v for name, v in claims.items() if v is not None}
    return jwt.encode(claims, key or KEYS[kid][1], algorithm=alg or KEYS[kid][0], headers={"kid": kid})


def symmetric(secret):
    """A token as token signs it, but with HS256, which PyJWT refuses with a public key."""
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT","kid":"rsa"}').rstrip(b"=")
    signed = head + b"." + token().split(".")[1].encode()
    return (signed + b"." + base64.urlsafe_b64encode(hmac.digest(secret, signed, "sha256")).rstrip(b"=")).decode()


def client(key="none", certificate=None):
    context = ssl.create_default_context(cafile=args.certificates + "/ca.pem")
    if certificate:
        path = args.certificates + "/" + certificate
        context.load_cert_chain(path + ".pem", path + ".key")
    hooks = {}
    if certificate:  # the client wants a key, and one would come before the certificate
        hooks = {"request": [lambda request: request.headers.pop("Authorization")]}
    http_client = openai.DefaultHttpxClient(verify=context, event_hooks=hooks)
    return openai.OpenAI(base_url=args.base_url + "/v1", api_key=key, max_retries=0, timeout=60, http_client=http_client)


def chat(c):
    answer = c.chat.completions.create(model="weir-sim", max_tokens=3, messages=[{"role": "user", "content": "hi"}])
    return answer.choices[0].message.content


def refused(key):
    """The reason for which a token is refused."""
    try:
        chat(client(key))
    except openai.AuthenticationError as e:
        if any(len(part) > 20 and part in str(e) for part in key.split(".")):
            return "the error has part of the token"
        return e.response.headers["x-refusal-reason"]
    return "it was taken"


count = 0


def check(name, ok, detail=""):
    global count
    count += 1
    print(json.dumps({"check": name, "ok": bool(ok), "detail": str(detail)}), flush=True)


def until(key, seconds=60):
    """Asks until a token is taken."""
    end = time.time() + seconds
    while True:
        try:
            return chat(client(key))
        except (openai.InternalServerError, openai.AuthenticationError):
            if time.time() > end:
                raise
            time.sleep(0.5)


place = urllib.parse.urlsplit(args.issuer)
server = http.server.ThreadingHTTPServer((place.hostname, place.port), Issuer)
threading.Thread(target=server.serve_forever, daemon=True).start()

check("a token, once the issuer is there", until(token()))
for kid in published:
    check(KEYS[kid][0], chat(client(token(kid))))
check("models of the token", [m.id for m in client(token(models=["gpt"])).models.list().data] == [])
public = KEYS["rsa"][1].public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
for name, key, reason in [
    ("expired", token(exp=int(time.time()) - 60), "token_expired"),
    ("not yet valid", token(nbf=int(time.time()) + 60), "token_not_yet_valid"),
    ("audience", token(aud="another"), "token_audience"),
    ("issuer", token(iss="https://evil.example"), "token_issuer"),
    ("no tenant", token(org=None), "token_claim"),
    ("none", jwt.encode({"iss": args.issuer, "aud": "weir", "exp": 1 << 40}, None, algorithm="none"), "token_algorithm"),
    ("HS256 with the public key", symmetric(public), "token_algorithm"),
    ("another's key", token("rsa", "ES256", KEYS["later"][1]), "token_key"),
    ("a key that is not published", token("later"), "token_key"),
]:
    got = refused(key)
    check(name, got == reason, got)
published[:] = ["later"]
check("a key that is published later", until(token("later")))
got = refused(token("ec"))
check("a key that was withdrawn", got == "token_key", got)

for name in ["subject", "uri"]:
    check("certificate: " + name, chat(client(certificate=name)))
for name in ["expired", "early", "stranger", "usage"]:
    try:
        check("certificate: " + name, False, chat(client(certificate=name)))
    except openai.APIConnectionError as e:
        check("certificate: " + name, True, e)
print(json.dumps({"checks": count}))
