// Package cephconf reads how Ceph clusters are reached, in the formats of
// ceph-csi and Rook: the ConfigMap with the monitors of each cluster, and
// Secrets with a user and its key.
package cephconf

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

// Cluster is one entry of config.json.
type Cluster struct {
	ID string `json:"clusterID"` // Rook: its namespace
	// Monitors as HOST:PORT or HOST; IPv6 addresses with brackets.
	Monitors []string `json:"monitors"`
	RBD      RBD      `json:"rbd"`
	CephFS   CephFS   `json:"cephFS"`
}

// RBD is the part of a Cluster for RBD images.
type RBD struct {
	RadosNamespace string `json:"radosNamespace"` // empty: the default
}

// CephFS is the part of a Cluster for CephFS. Its kernelMountOptions are
// ignored: the node plugin chooses the options of a mount.
type CephFS struct {
	// SubvolumeGroup has the subvolumes of the driver; empty: csi.
	SubvolumeGroup string `json:"subvolumeGroup"`
	// RadosNamespace of the metadata pool has the records of ceph-csi; empty: csi.
	RadosNamespace string `json:"radosNamespace"`
}

// Group returns the name of the subvolume group.
func (c CephFS) Group() string { return cmp.Or(c.SubvolumeGroup, "csi") }

// Namespace returns the RADOS namespace of ceph-csi's records.
func (c CephFS) Namespace() string { return cmp.Or(c.RadosNamespace, "csi") }

// Clusters are all entries of config.json.
type Clusters []Cluster

// Read reads a file in the format of ceph-csi's config.json.
func Read(path string) (Clusters, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the Ceph clusters: %w", err)
	}
	all, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

// Parse parses the content of config.json. Keys of other uses are ignored, as
// in ceph-csi.
func Parse(data []byte) (Clusters, error) {
	var all Clusters
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("the list of Ceph clusters is not JSON as ceph-csi's config.json, [{\"clusterID\": ..., \"monitors\": [...]}]: %w", err)
	}
	ids := map[string]bool{}
	for i, c := range all {
		switch {
		case c.ID == "":
			return nil, fmt.Errorf("entry %d has no clusterID", i)
		case ids[c.ID]:
			return nil, fmt.Errorf("two entries have the clusterID %s", errs.Quote(c.ID))
		case len(c.Monitors) == 0:
			return nil, fmt.Errorf("cluster %s has no monitors", errs.Quote(c.ID))
		}
		ids[c.ID] = true
		for _, m := range c.Monitors {
			if m == "" || strings.ContainsFunc(m, func(r rune) bool { return r <= ' ' || r == ',' || r == 0x7f }) {
				return nil, fmt.Errorf("cluster %s: monitor %s is not HOST:PORT", errs.Quote(c.ID), errs.Quote(m))
			}
		}
	}
	return all, nil
}

// Find returns the cluster with an id. NotFound: no entry has it.
func (all Clusters) Find(id string) (Cluster, error) {
	i := slices.IndexFunc(all, func(c Cluster) bool { return c.ID == id })
	if i < 0 {
		var ids []string
		for _, c := range all {
			ids = append(ids, c.ID)
		}
		return Cluster{}, errs.Errorf(errs.NotFound, "clusterID %s is not in the list of Ceph clusters, which has %q", errs.Quote(id), ids)
	}
	return all[i], nil
}

// Credentials are a Ceph user and its key. They print without the key.
type Credentials struct {
	User string // without "client."
	Key  string
}

// Keys of ceph-csi's Secrets: those for RBD, and of nodes for CephFS, then those
// of controllers for CephFS.
const (
	keyUser      = "userID"
	keyKey       = "userKey"
	keyAdminUser = "adminID"
	keyAdminKey  = "adminKey"
)

// FromSecrets returns the credentials in the secrets of a request; false if it
// has none. Invalid: one of user and key is missing. Those of a controller for
// CephFS, adminID and adminKey, count where a Secret has no others.
func FromSecrets(secrets map[string]string) (c Credentials, given bool, err error) {
	user, key := keyUser, keyKey
	if secrets[user] == "" && secrets[key] == "" {
		user, key = keyAdminUser, keyAdminKey
	}
	c = Credentials{User: secrets[user], Key: secrets[key]}
	c.User = strings.TrimPrefix(c.User, "client.")
	switch {
	case c == Credentials{}:
		return c, false, nil
	case c.User == "" || c.Key == "":
		return Credentials{}, false, errs.Errorf(errs.Invalid, "the secrets have one of %s and %s; both are needed", user, key)
	}
	return c, true, nil
}

// ReadCredentials reads the files userID and userKey, or adminID and adminKey, in
// a directory, such as a mounted Secret of ceph-csi or Rook.
func ReadCredentials(dir string) (Credentials, error) {
	secrets := map[string]string{}
	user, key := keyUser, keyKey
	if _, err := os.Stat(filepath.Join(dir, keyUser)); errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(dir, keyAdminUser)); err == nil {
			user, key = keyAdminUser, keyAdminKey
		}
	}
	for _, key := range []string{user, key} {
		data, err := os.ReadFile(filepath.Join(dir, key))
		if errors.Is(err, fs.ErrNotExist) {
			return Credentials{}, fmt.Errorf("read Ceph credentials: %w; the directory needs the files %s and %s (of controllers for CephFS also %s and %s) of a Secret of ceph-csi or Rook", err, keyUser, keyKey, keyAdminUser, keyAdminKey)
		}
		if err != nil {
			return Credentials{}, fmt.Errorf("read Ceph credentials: %w", err)
		}
		secrets[key] = strings.TrimSpace(string(data))
	}
	c, given, err := FromSecrets(secrets)
	if err == nil && !given {
		err = fmt.Errorf("the files %s and %s are empty", user, key)
	}
	if err != nil {
		return Credentials{}, fmt.Errorf("credentials in %s: %w", dir, err)
	}
	return c, nil
}

func (c Credentials) String() string { return "client." + c.User }

// GoString implements fmt.GoStringer.
func (c Credentials) GoString() string { return c.String() }
