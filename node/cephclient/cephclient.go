// Package cephclient returns how this node becomes a client of the Ceph cluster
// of a volume, for the attachers of RBD and CephFS.
package cephclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/internal/linux/libceph"
	"github.com/cleatproject/cleat/volume/access"
)

// Config is an attacher's.
type Config struct {
	// Clusters returns the configured clusters, for locators with a clusterID.
	Clusters func() (cephconf.Clusters, error)
	// Credentials returns the user for requests without secrets.
	Credentials func() (cephconf.Credentials, error)
}

// Client returns the client for a locator, and the configured cluster, which is
// zero if the locator has its monitors instead.
func (c Config) Client(ctx context.Context, l access.Ceph, secrets map[string]string) (libceph.Client, cephconf.Cluster, error) {
	var none cephconf.Cluster
	user, err := c.credentials(secrets)
	if err != nil {
		return libceph.Client{}, none, err
	}
	if l.User != "" && l.User != user.User {
		return libceph.Client{}, none, errs.Errorf(errs.Precondition, "the volume_context names the Ceph user client.%s, but the credentials are those of %v; give those of client.%[1]s in the node stage secret", l.User, user)
	}
	client := libceph.Client{Monitors: l.Monitors, User: user.User, Secret: user.Key}
	if l.ClusterID == "" {
		return client, none, nil
	}
	cluster, err := c.cluster(l.ClusterID)
	switch {
	case errors.Is(err, errs.NotFound) && len(l.Monitors) > 0:
		return client, none, nil
	case errors.Is(err, errs.NotFound): // not the volume
		return client, none, errs.Errorf(errs.Precondition, "%v; add the cluster to the driver's configuration", err)
	case err != nil:
		return client, none, err
	}
	client.Monitors, err = resolve(ctx, cluster)
	return client, cluster, err
}

func (c Config) credentials(secrets map[string]string) (cephconf.Credentials, error) {
	user, given, err := cephconf.FromSecrets(secrets)
	switch {
	case err != nil || given:
		return user, err
	case c.Credentials == nil:
		return user, errs.Errorf(errs.Unauthenticated, "the request has no Ceph credentials: name a Secret with userID and userKey in the StorageClass (csi.storage.k8s.io/node-stage-secret-name, and node-publish-secret-name for a volume that is staged again by a publish) or the PersistentVolume")
	}
	user, err = c.Credentials()
	if err != nil {
		return user, errs.Errorf(errs.Unavailable, "%w", err)
	}
	return user, nil
}

// cluster returns a configured cluster.
func (c Config) cluster(id string) (cephconf.Cluster, error) {
	var all cephconf.Clusters
	if c.Clusters != nil {
		var err error
		if all, err = c.Clusters(); err != nil {
			return cephconf.Cluster{}, errs.Errorf(errs.Unavailable, "%w", err)
		}
	}
	return all.Find(id)
}

// resolveBound limits the look-up of the monitors' names.
const resolveBound = 5 * time.Second

// resolve returns the addresses of a cluster's monitors: the kernel cannot
// resolve names without a helper.
func resolve(ctx context.Context, c cephconf.Cluster) ([]netip.AddrPort, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveBound)
	defer cancel()
	var monitors []netip.AddrPort
	for _, m := range c.Monitors {
		if at, err := ParseMonitor(m); err == nil {
			monitors = append(monitors, at)
			continue
		}
		found, err := lookUp(ctx, m)
		if err != nil {
			return nil, errs.Errorf(errs.Unavailable, "monitor %s of the Ceph cluster %s: %w", errs.Quote(m), c.ID, err)
		}
		monitors = append(monitors, found...)
	}
	return monitors, nil
}

func lookUp(ctx context.Context, monitor string) ([]netip.AddrPort, error) {
	host, port := monitor, uint64(0)
	if h, p, err := net.SplitHostPort(monitor); err == nil {
		host = h
		if port, err = strconv.ParseUint(p, 10, 16); err != nil {
			return nil, fmt.Errorf("port %s is not a number up to 65535", errs.Quote(p))
		}
	}
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	var all []netip.AddrPort
	for _, address := range addresses {
		all = append(all, netip.AddrPortFrom(address.Unmap(), uint16(port)))
	}
	return all, err
}

// ParseMonitor parses an address with or without a port.
func ParseMonitor(text string) (netip.AddrPort, error) {
	if at, err := netip.ParseAddrPort(text); err == nil {
		return at, nil
	}
	if n := len(text); n > 2 && text[0] == '[' && text[n-1] == ']' {
		text = text[1 : n-1]
	}
	address, err := netip.ParseAddr(text)
	return netip.AddrPortFrom(address, 0), err
}
