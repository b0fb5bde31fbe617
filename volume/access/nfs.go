package access

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"
)

// NFS is a directory of an NFS export.
type NFS struct {
	Server  string   // an IP address without brackets, or a host name
	Share   string   // absolute and clean
	SubDir  string   // relative and clean; empty: the share itself
	Options []string // in order, without secrets
}

func (NFS) Protocol() string { return protocolNFS }

const (
	protocolNFS = "nfs"

	keyServer  = "server"
	keyShare   = "share"
	keySubDir  = "subdir"
	keyOptions = "mountoptions"
)

func nfsDialect() dialect {
	return dialect{
		protocol: protocolNFS,
		keys:     map[string][]string{keyType: nil, keyServer: nil, keyShare: nil, keySubDir: nil, keyOptions: nil},
		identity: []string{keyServer, keyShare, keySubDir},
		build:    buildNFS,
	}
}

var hostPattern = pattern(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`)

func buildNFS(f fields) (Access, error) {
	n := NFS{Server: f[keyServer], Share: f[keyShare], SubDir: strings.Trim(f[keySubDir], "/")}
	if a, err := parseAddr(n.Server); err == nil {
		n.Server = a.String()
	} else if len(n.Server) > 253 || !hostPattern().MatchString(n.Server) {
		return nil, fmt.Errorf("%s %s is neither an IP address nor a host name", keyServer, Quote(n.Server))
	}
	if len(n.Share) > 1 {
		n.Share = strings.TrimSuffix(n.Share, "/")
	}
	if err := checkAbsolute(keyShare, n.Share); err != nil {
		return nil, err
	}
	if n.SubDir != "" && (!isLocalName(n.SubDir) || hasControl(n.SubDir)) {
		return nil, fmt.Errorf("%s %s is not a clean path relative to the share", keySubDir, Quote(f[keySubDir]))
	}
	var err error
	n.Options, err = f.options()
	if err != nil {
		return nil, err
	}
	return n, nil
}

// secretOptions are mount options that carry a secret itself.
var secretOptions = []string{"secret", "password", "passwd", "pass", "key"}

func (f fields) options() ([]string, error) {
	var all []string
	for o := range strings.SplitSeq(f[keyOptions], ",") {
		o = strings.TrimSpace(o)
		name, _, hasValue := strings.Cut(o, "=")
		switch {
		case o == "":
			continue
		case hasValue && slices.Contains(secretOptions, strings.ToLower(name)), secretPattern().MatchString(o):
			return nil, fmt.Errorf("%s contains an option with a secret (not shown); secrets are not allowed in a volume context", keyOptions)
		case strings.ContainsFunc(o, unicode.IsSpace) || hasControl(o):
			return nil, fmt.Errorf("%s %s: an option must not contain blanks; separate options with commas", keyOptions, Quote(o))
		}
		all = append(all, o)
	}
	return all, nil
}

func hasControl(s string) bool { return strings.ContainsFunc(s, unicode.IsControl) }

func checkAbsolute(key, p string) error {
	if p == "" {
		return fmt.Errorf("%s is missing: give an absolute path", key)
	}
	if !path.IsAbs(p) || path.Clean(p) != p || hasControl(p) || len(p) > 1024 {
		return fmt.Errorf("%s %s is not an absolute, clean path", key, Quote(p))
	}
	return nil
}

func (n NFS) encode() map[string]string {
	out := map[string]string{keyType: protocolNFS, keyServer: n.Server, keyShare: n.Share}
	set(out, keySubDir, n.SubDir)
	set(out, keyOptions, strings.Join(n.Options, ","))
	return out
}
