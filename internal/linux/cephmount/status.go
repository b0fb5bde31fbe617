package cephmount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mount"
)

// ClientOf asks the cluster for the client of the mount at a directory, as
// debugfs names it: FSID.clientN.
func ClientOf(dir string) (string, error) {
	fsid, err := attribute(dir, "ceph.cluster_fsid")
	if err != nil {
		return "", err
	}
	client, err := attribute(dir, "ceph.client_id")
	if err != nil {
		return "", err
	}
	name := fsid + "." + client
	if !isClient(name) {
		return "", fmt.Errorf("the client of %s is %s, not FSID.clientN", dir, errs.Quote(name))
	}
	return name, nil
}

// isClient keeps file names apart from paths.
func isClient(name string) bool {
	fsid, client, ok := strings.Cut(name, ".client")
	return ok && fsid != "" && client != "" && !strings.ContainsAny(name, "/\x00") && !strings.HasPrefix(name, ".")
}

// Status is what the kernel knows of a client.
type Status struct {
	Instance string // "192.0.2.1:0/123"; empty: not known
	// Blocklisted: the cluster has fenced the client. Its mount never works
	// again, also after the fence is lifted.
	Blocklisted bool
}

// StatusOf reads a client's status from debugfs, which it mounts for itself. It
// does not wait for the cluster. fs.ErrNotExist: the client does not exist.
// errs.Unsupported: debugfs cannot be read.
func StatusOf(ctx context.Context, client string) (Status, error) {
	if !isClient(client) {
		return Status{}, fmt.Errorf("the client %s: %w", errs.Quote(client), fs.ErrNotExist)
	}
	tree, err := mount.Create(ctx, mount.Spec{Source: "debugfs", FSType: "debugfs", ReadOnly: false})
	if err != nil {
		return Status{}, errs.Errorf(errs.Unsupported, "read debugfs: %w", err)
	}
	defer tree.Close()
	text, err := os.ReadFile(filepath.Join(tree.Path(), "ceph", client, "status"))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			err = errs.Errorf(errs.Unsupported, "read debugfs: %w", err)
		}
		return Status{}, err
	}
	return parseStatus(string(text)), nil
}

// parseStatus parses lines such as "instance: client.4123 (1)192.0.2.1:0/123"
// and "blocklisted: false".
func parseStatus(text string) Status {
	var s Status
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "instance":
			words := strings.Fields(value)
			if len(words) == 0 {
				continue
			}
			address := words[len(words)-1]
			if _, after, typed := strings.Cut(address, ")"); typed {
				address = after
			}
			s.Instance = address
		case "blocklisted", "blacklisted":
			s.Blocklisted = value == "true"
		}
	}
	return s
}
