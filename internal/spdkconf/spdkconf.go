// Package spdkconf reads which SPDK targets exist and how they are reached:
// spdk-csi's config.json and secret.json, or the same with more keys as YAML.
package spdkconf

import (
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/strictjson"
)

// Target is an SPDK process with volumes.
type Target struct {
	Name string // part of volume ids

	// One of both: a UNIX socket, or SPDK's HTTP proxy with User and Password.
	Socket, URL string
	User        string
	Password    Secret

	Transport string // "tcp" or "rdma"
	Addresses []netip.AddrPort
	// TLSAddresses are for volumes with TLS alone.
	TLSAddresses []netip.AddrPort

	Stores   []string // names of lvol stores; empty: all
	Forget   []string // UUIDs of lvols that are lost for good
	Cleared  []string // tokens of unclean lvol stores that were cleared
	Topology map[string]string
	Retired  bool // gone for good; only Name matters
}

// Secret is the password of a target. It has the place of the password only, so
// that it can be printed and a changed file takes effect.
type Secret struct{ file, target, user string }

// Read returns the password in the file as it is now.
func (s Secret) Read() (string, error) {
	all, err := readTokens(s.file)
	if err != nil {
		return "", err
	}
	t, found := find(all, s.target)
	switch {
	case !found:
		return "", errs.Errorf(errs.Precondition, "%s: rpcTokens has no entry with the name %s any more", s.file, errs.Quote(s.target))
	case t.User != s.user:
		return "", errs.Errorf(errs.Precondition, "%s: the username of %s has changed from %s to %s; restart to use it", s.file, errs.Quote(s.target), errs.Quote(s.user), errs.Quote(t.User))
	}
	return t.Password, nil
}

// Read reads the targets, and checks that the secret file has a password for
// each that needs one. Entries of other names are ignored. secret is "" without
// such a file. Errors: errs.Invalid joins all mistakes.
func Read(config, secret string) ([]Target, error) {
	text, err := readFile(config)
	if err != nil {
		return nil, err
	}
	targets, err := Parse(text)
	if err != nil {
		return nil, errs.Errorf(errs.Invalid, "%s: %w", config, err)
	}
	var tokens []token
	if secret != "" {
		if tokens, err = readTokens(secret); err != nil {
			return nil, err
		}
	}
	var problems []strictjson.Problem
	for i := range targets {
		t := &targets[i]
		if t.URL == "" || t.Retired {
			continue
		}
		own, found := find(tokens, t.Name)
		if !found {
			problems = append(problems, problem("target "+errs.Quote(t.Name), "rpcURL %s needs a user and password: add {\"name\": %q, \"username\": ..., \"password\": ...} to rpcTokens of %s", t.URL, t.Name, orName(secret)))
			continue
		}
		t.User, t.Password = own.User, Secret{file: secret, target: t.Name, user: own.User}
	}
	if len(problems) > 0 {
		return nil, errs.Errorf(errs.Invalid, "%s: %w", config, strictjson.JoinErrors(problems))
	}
	return targets, nil
}

func orName(secret string) string {
	if secret == "" {
		return "a secret.json, and give its path"
	}
	return secret
}

// maxSize in bytes is that of a ConfigMap or Secret.
const maxSize = 1 << 20

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, errs.Errorf(errs.Precondition, "read the SPDK targets: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxSize {
		return nil, errs.Errorf(errs.Invalid, "read the SPDK targets: %s is not a regular file of at most %d bytes (mode %s, %d bytes)", path, maxSize, info.Mode(), info.Size())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, errs.Errorf(errs.Precondition, "read the SPDK targets: %w", err)
	}
	return text, nil
}

// token is an entry of secret.json.
type token struct {
	Name     string `json:"name"`
	User     string `json:"username"`
	Password string `json:"password"`
}

func find(all []token, name string) (token, bool) {
	i := slices.IndexFunc(all, func(t token) bool { return t.Name == name })
	if i < 0 {
		return token{}, false
	}
	return all[i], true
}

func readTokens(path string) ([]token, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	all, err := parseTokens(text)
	if err != nil {
		return nil, errs.Errorf(errs.Invalid, "%s: %w", path, err)
	}
	return all, nil
}

// controls are characters that no HTTP server accepts in credentials.
var controls = regexp.MustCompile(`[\x00-\x1f\x7f]`)

// parseTokens never puts a password into an error.
func parseTokens(text []byte) ([]token, error) {
	var d struct {
		Tokens []token `json:"rpcTokens"`
	}
	problems, err := decode(text, &d, "secret.json")
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for i, t := range d.Tokens {
		at := entryPath("rpcTokens", i, t.Name)
		switch {
		case t.Name == "":
			problems = append(problems, problem(at+".name", "it is missing; it is the name of a target"))
		case names[t.Name]:
			problems = append(problems, problem(at+".name", "two entries have this name"))
		case t.User == "" || strings.Contains(t.User, ":") || controls.MatchString(t.User):
			problems = append(problems, problem(at+".username", "%s is not a user name: it must not be empty or have a colon or control characters", errs.Quote(t.User)))
		case t.Password == "" || controls.MatchString(t.Password):
			problems = append(problems, problem(at+".password", "it is empty or has control characters, such as a line break at its end"))
		}
		names[t.Name] = true
	}
	if len(problems) > 0 {
		return nil, strictjson.JoinErrors(problems)
	}
	return d.Tokens, nil
}
