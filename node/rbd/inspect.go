package rbd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/deviceop"
	"github.com/cleatproject/cleat/internal/linux/krbd"
	"github.com/cleatproject/cleat/internal/linux/libceph"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/cephclient"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// Inspect implements node.Attacher. Only the cluster knows images that are not
// mapped, and whether a mapped one was deleted.
func (a *Attacher) Inspect(ctx context.Context, t node.Target) (node.Info, error) {
	l, err := locatorOf(t)
	if err != nil {
		return node.Info{}, err
	}
	devices, err := a.attached(t)
	if err != nil {
		return node.Info{}, err
	}
	info := node.Info{Presence: node.Present}
	if len(devices) > 0 {
		d := devices[0]
		info.Device, info.ReadOnly, info.Backing, info.Size = toDevice(d), d.ReadOnly, backing(d), d.Size
	}
	if info.Problem = a.waiting(l, devices); info.Problem == nil && len(devices) > 0 {
		info.Problem = a.probe(ctx, devices[0])
	}
	switch {
	case errors.Is(info.Problem, krbd.ErrFenced):
		info.Presence = node.Lost
	case info.Problem != nil:
		info.Presence = node.Unreachable
	}
	return info, ctx.Err()
}

// probe asks the cluster for the header of a device's image. Its operation has a
// key of its own: it excludes no other one on the image, as it can wait for ever.
// krbd.ErrFenced: the device does not work again. Unavailable: the cluster does
// not answer within the bound, or did not answer an earlier call.
func (a *Attacher) probe(ctx context.Context, d krbd.Device) error {
	key := name(d.Pool, d.Image) + " (" + d.Instance + ")"
	bound := min(usual, a.config.Timeout/3)
	if err := a.ops.Waiting(key, bound); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	_, err := deviceop.Do(ctx, a.ops, key, "probe", "", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, a.kernel.Refresh(ctx, d)
	})
	switch {
	case errors.Is(err, krbd.ErrFenced):
		return errs.Errorf(errs.Precondition, "%w: data that was not written is lost, and %s of the client %s is to be replaced", err, d.Path, d.Instance)
	case err != nil:
		return errs.Errorf(errs.Unavailable, "the Ceph cluster does not show the image of %s: %w", d.Path, err)
	}
	return nil
}

// Held implements node.Attacher: all devices that this driver mapped, whatever
// their images are.
func (a *Attacher) Held(context.Context) ([]node.Held, error) {
	all, err := a.kernel.List()
	if err != nil {
		return nil, err
	}
	var held []node.Held
	for _, d := range all {
		from, own := a.originOf(d)
		if !own {
			continue
		}
		h := node.Held{Device: toDevice(d), Locator: locator(d, from), Volume: from.volume}
		if h.Volume == "" && a.config.VolumeID != nil {
			h.Volume = a.config.VolumeID(d)
		}
		held = append(held, h)
	}
	return held, nil
}

func locatorOf(t node.Target) (access.RBD, error) {
	l, ok := t.Locator.(access.RBD)
	if !ok {
		return l, errs.Errorf(errs.Internal, "the locator %T is not that of an RBD image", t.Locator)
	}
	return l, nil
}

func locator(d krbd.Device, from origin) access.Access {
	l := access.RBD{Ceph: access.Ceph{ClusterID: from.cluster}, Pool: d.Pool, Namespace: from.namespace, Image: d.Image, ImageID: d.ImageID}
	if from.cluster != "" {
		return l
	}
	for _, m := range d.Monitors {
		at, err := cephclient.ParseMonitor(m)
		if err != nil {
			return nil
		}
		l.Monitors = append(l.Monitors, at)
	}
	return l
}

// attached lists this driver's devices of a volume: those of its locator, and
// that with the Backing.
func (a *Attacher) attached(t node.Target) ([]krbd.Device, error) {
	all, err := a.kernel.List()
	if err != nil {
		return nil, err
	}
	l, located := t.Locator.(access.RBD)
	return slices.DeleteFunc(all, func(d krbd.Device) bool {
		from, own := a.originOf(d)
		known := t.Device.Backing != "" && backing(d) == t.Device.Backing
		return !own || !known && !(located && from.matches(d, l))
	}), nil
}

// find lists the devices of an image before it is attached: this driver's for
// the locator, and all others, which other programs mapped, or another locator.
func (a *Attacher) find(l access.RBD, spec krbd.Spec) (own, foreign []krbd.Device, err error) {
	all, err := a.kernel.List()
	if err != nil {
		return nil, nil, err
	}
	same := l
	same.ClusterID, same.Monitors = "", spec.Monitors
	for _, d := range all {
		from, ours := a.originOf(d)
		switch {
		case ours && from.matches(d, l):
			own = append(own, d)
		case d.Snapshot == "" && d.Namespace == spec.Namespace && origin{namespace: l.Namespace}.matches(d, same):
			foreign = append(foreign, d)
		}
	}
	return own, foreign, nil
}

// origin is what the locator of a device had: the rest is in the device.
type origin struct {
	cluster   string
	namespace string // without that of the cluster's configuration
	volume    volume.ID
}

// matches reports whether a device is that of a locator. Without an image id
// its name decides, and without a cluster's name a common monitor.
func (o origin) matches(d krbd.Device, l access.RBD) bool {
	switch {
	case d.Pool != l.Pool, o.namespace != l.Namespace, d.Image != l.Image, l.ImageID != "" && d.ImageID != l.ImageID:
		return false
	case o.cluster != "" || l.ClusterID != "":
		return o.cluster == l.ClusterID
	}
	return slices.ContainsFunc(l.Monitors, func(m netip.AddrPort) bool {
		return slices.Contains(d.Monitors, libceph.FormatMonitor(m))
	})
}

// The names of keys are this, the driver, the origin, and "VOLUME:" with random
// letters. Earlier releases did not write VOLUME and the colon, and accept both.
const ownerPrefix = "cleat/"

func (a *Attacher) owner(l access.RBD, id volume.ID) string {
	owner := ownerPrefix
	for _, word := range []string{a.config.Driver, l.ClusterID, l.Namespace} {
		owner += url.QueryEscape(word) + "/"
	}
	return owner + url.QueryEscape(string(id)) + ":"
}

// originOf returns the origin of a device that this driver mapped.
func (a *Attacher) originOf(d krbd.Device) (o origin, own bool) {
	words := strings.Split(d.Key, "/")
	if len(words) != 5 || words[0]+"/" != ownerPrefix {
		return o, false
	}
	id, _, isLabelled := strings.Cut(words[4], ":")
	if !isLabelled {
		id = ""
	}
	words[4] = id
	for i := range words {
		word, err := url.QueryUnescape(words[i])
		if err != nil {
			return o, false
		}
		words[i] = word
	}
	return origin{cluster: words[2], namespace: words[3], volume: volume.ID(words[4])}, words[1] == a.config.Driver
}

func toDevice(d krbd.Device) node.Device {
	return node.Device{Path: d.Path, Major: d.Major, Minor: d.Minor, Backing: backing(d)}
}

// backing identifies an image in all clusters: Ceph does not use an image id
// again.
func backing(d krbd.Device) string {
	return fmt.Sprintf("%s/%d/%s/%s", d.Cluster, d.PoolID, d.Namespace, d.ImageID)
}
