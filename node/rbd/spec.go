package rbd

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
	"github.com/cleatproject/cleat/internal/linux/krbd"
	"github.com/cleatproject/cleat/volume/access"
)

// spec returns how the image of a locator is mapped.
func (a *Attacher) spec(ctx context.Context, l access.RBD, secrets map[string]string) (krbd.Spec, error) {
	c, err := a.credentials(secrets)
	if err != nil {
		return krbd.Spec{}, err
	}
	if l.User != "" && l.User != c.User {
		return krbd.Spec{}, errs.Errorf(errs.Precondition, "the volume_context names the Ceph user client.%s, but the credentials are those of %v; give those of client.%[1]s in the node stage secret", l.User, c)
	}
	spec := krbd.Spec{
		Monitors: l.Monitors, User: c.User, Secret: c.Key, Owner: a.owner(l),
		Pool: l.Pool, Namespace: l.Namespace, Image: l.Image,
	}
	if l.ClusterID == "" {
		return spec, nil
	}
	cluster, err := a.cluster(l.ClusterID)
	switch {
	case errors.Is(err, errs.NotFound) && len(l.Monitors) > 0:
		return spec, nil
	case errors.Is(err, errs.NotFound): // not the volume
		return krbd.Spec{}, errs.Errorf(errs.Precondition, "%v; add the cluster to the driver's configuration", err)
	case err != nil:
		return krbd.Spec{}, err
	}
	if spec.Namespace == "" {
		spec.Namespace = cluster.RBD.RadosNamespace
	}
	spec.Monitors, err = resolve(ctx, cluster)
	return spec, err
}

func (a *Attacher) credentials(secrets map[string]string) (cephconf.Credentials, error) {
	c, given, err := cephconf.FromSecrets(secrets)
	switch {
	case err != nil || given:
		return c, err
	case a.config.Credentials == nil:
		return c, errs.Errorf(errs.Unauthenticated, "the request has no Ceph credentials: name a Secret with userID and userKey in the StorageClass (csi.storage.k8s.io/node-stage-secret-name) or the PersistentVolume")
	}
	c, err = a.config.Credentials()
	if err != nil {
		return c, errs.Errorf(errs.Unavailable, "%w", err)
	}
	return c, nil
}

// cluster returns a configured cluster.
func (a *Attacher) cluster(id string) (cephconf.Cluster, error) {
	var all cephconf.Clusters
	if a.config.Clusters != nil {
		var err error
		if all, err = a.config.Clusters(); err != nil {
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
		if at, err := parseMonitor(m); err == nil {
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

// parseMonitor parses an address with or without a port.
func parseMonitor(text string) (netip.AddrPort, error) {
	if at, err := netip.ParseAddrPort(text); err == nil {
		return at, nil
	}
	if n := len(text); n > 2 && text[0] == '[' && text[n-1] == ']' {
		text = text[1 : n-1]
	}
	address, err := netip.ParseAddr(text)
	return netip.AddrPortFrom(address, 0), err
}
