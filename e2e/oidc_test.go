package e2e

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
	"golang.org/x/oauth2"
)

const (
	wikiClient   = "wiki"
	wikiSecret   = "the client's secret"
	wikiCallback = "https://wiki.example.org/oauth2/callback"
	adasPassword = "lovelace"
)

// provider is an OpenID provider (OpenID Connect Core 1.0, the authorization code flow with PKCE).
// It knows the user ada and one client, and asks for the password at each login.
type provider struct {
	*httptest.Server
	signer jose.Signer
	mu     sync.Mutex
	codes  map[string]url.Values // the parameters of the authorization request, by its code
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	key := jose.JSONWebKey{Key: tokenKey, KeyID: "ec-1", Algorithm: string(jose.ES256), Use: "sig"}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{signer: signer, codes: map[string]url.Values{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(map[string]any{
			"issuer": p.URL, "authorization_endpoint": p.URL + "/authorize", "token_endpoint": p.URL + "/token", "jwks_uri": p.URL + "/jwks",
			"response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"},
			"id_token_signing_alg_values_supported": []string{"ES256"},
		})
	})
	mux.HandleFunc("GET /jwks", func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key.Public()}})
	})
	mux.HandleFunc("GET /authorize", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, `<!doctype html><title>Sign in</title><form method="post"><input name="user"><input name="password" type="password"><button>Sign in</button></form>`)
	})
	mux.HandleFunc("POST /authorize", p.authorize)
	mux.HandleFunc("POST /token", p.token)
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}

// authorize checks the password, and sends the browser back to the client with a code.
func (p *provider) authorize(w http.ResponseWriter, r *http.Request) {
	request := r.URL.Query()
	switch {
	case request.Get("client_id") != wikiClient, request.Get("redirect_uri") != wikiCallback, request.Get("response_type") != "code", request.Get("code_challenge_method") != "S256":
		http.Error(w, "no such client", http.StatusBadRequest)
	case r.PostFormValue("user") != "ada" || r.PostFormValue("password") != adasPassword:
		http.Error(w, "wrong password", http.StatusForbidden)
	default:
		code := rand.Text()
		p.mu.Lock()
		p.codes[code] = request
		p.mu.Unlock()
		http.Redirect(w, r, wikiCallback+"?"+url.Values{"code": {code}, "state": request["state"]}.Encode(), http.StatusSeeOther)
	}
}

// token gives an ID token for a code, once, to the client that began the login.
func (p *provider) token(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	code := r.PostFormValue("code")
	request, known := p.codes[code]
	delete(p.codes, code)
	p.mu.Unlock()
	challenge := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
	client, secret, _ := r.BasicAuth()
	if !known || client != wikiClient || secret != url.QueryEscape(wikiSecret) || base64.RawURLEncoding.EncodeToString(challenge[:]) != request.Get("code_challenge") {
		http.Error(w, `{"error": "invalid_grant"}`, http.StatusBadRequest)
		return
	}
	now := time.Now()
	claims, _ := json.Marshal(map[string]any{
		"iss": p.URL, "aud": wikiClient, "sub": "7", "preferred_username": "ada", "email": "ada@example.org", "nonce": request.Get("nonce"),
		"iat": now.Unix(), "exp": now.Add(time.Minute).Unix(),
	})
	signed, err := p.signer.Sign(claims)
	if err != nil {
		panic(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string]any{"access_token": rand.Text(), "token_type": "Bearer", "expires_in": 60, "id_token": text})
}

// signIn is an auth server with the paths and HTTP headers of oauth2-proxy. It signs users in at a
// provider, and keeps their sessions in memory.
type signIn struct {
	oauth    oauth2.Config
	verifier *oidc.IDTokenVerifier
	mu       sync.Mutex
	logins   map[string]login    // logins that have begun, by their state
	sessions map[string]wikiUser // by the value of the cookie
	forged   []string            // what clients claimed about the user
}

// login is what a login has to end with.
type login struct{ nonce, verifier, page string }

type wikiUser struct {
	Name  string `json:"preferred_username"`
	Email string `json:"email"`
}

func newSignIn(t *testing.T, p *provider) *signIn {
	t.Helper()
	found, err := oidc.NewProvider(t.Context(), p.URL)
	if err != nil {
		t.Fatal(err)
	}
	return &signIn{
		oauth: oauth2.Config{ClientID: wikiClient, ClientSecret: wikiSecret, Endpoint: found.Endpoint(), RedirectURL: wikiCallback,
			Scopes: []string{oidc.ScopeOpenID, "email"}},
		// The key set is requested later, so its context outlives this function.
		verifier: found.VerifierContext(context.WithoutCancel(t.Context()), &oidc.Config{ClientID: wikiClient}),
		logins:   map[string]login{}, sessions: map[string]wikiUser{},
	}
}

func (s *signIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forged = append(s.forged, r.Header.Values("X-Auth-Request-User")...)
	switch r.URL.Path {
	case "/oauth2/start":
		s.start(w, r)
	case "/oauth2/callback":
		if err := s.callback(w, r); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
		}
	case "/oauth2/auth":
		user, known := s.sessions[cookie(r, "session")]
		if !known {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("X-Auth-Request-User", user.Name)
		w.Header().Set("X-Auth-Request-Email", user.Email)
		w.WriteHeader(http.StatusAccepted)
	case "/oauth2/sign_out":
		delete(s.sessions, cookie(r, "session"))
		http.SetCookie(w, &http.Cookie{Name: "session", Path: "/", MaxAge: -1})
		http.Redirect(w, r, "/", http.StatusFound)
	default:
		http.NotFound(w, r)
	}
}

func cookie(r *http.Request, name string) string {
	if c, err := r.Cookie(name); err == nil {
		return c.Value
	}
	return ""
}

// start sends the browser to the provider. The page is one of the wiki only.
func (s *signIn) start(w http.ResponseWriter, r *http.Request) {
	page := r.URL.Query().Get("rd")
	if !strings.HasPrefix(page, "https://wiki.example.org/") {
		http.Error(w, "that page is elsewhere", http.StatusBadRequest)
		return
	}
	state, begun := rand.Text(), login{nonce: rand.Text(), verifier: oauth2.GenerateVerifier(), page: page}
	s.logins[state] = begun
	http.SetCookie(w, &http.Cookie{Name: "login", Value: state, Path: "/oauth2", Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode})
	http.Redirect(w, r, s.oauth.AuthCodeURL(state, oidc.Nonce(begun.nonce), oauth2.S256ChallengeOption(begun.verifier)), http.StatusFound)
}

// callback ends a login of this browser: it exchanges the code for a token, and begins a session.
func (s *signIn) callback(w http.ResponseWriter, r *http.Request) error {
	state := r.URL.Query().Get("state")
	begun, known := s.logins[state]
	if !known || state != cookie(r, "login") {
		return fmt.Errorf("this browser began no login %q", state)
	}
	delete(s.logins, state)
	tokens, err := s.oauth.Exchange(r.Context(), r.URL.Query().Get("code"), oauth2.VerifierOption(begun.verifier))
	if err != nil {
		return err
	}
	text, _ := tokens.Extra("id_token").(string)
	id, err := s.verifier.Verify(r.Context(), text)
	if err != nil {
		return err
	}
	var user wikiUser
	if err := id.Claims(&user); err != nil {
		return err
	}
	if id.Nonce != begun.nonce {
		return fmt.Errorf("the token is of another login")
	}
	session := rand.Text()
	s.sessions[session] = user
	http.SetCookie(w, &http.Cookie{Name: "session", Value: session, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode})
	http.Redirect(w, r, begun.page, http.StatusFound)
	return nil
}
