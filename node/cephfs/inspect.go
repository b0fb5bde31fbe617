package cephfs

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/deviceop"
	"github.com/cleatproject/cleat/internal/linux/cephmount"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume/access"
)

// Inspect implements node.Attacher. Only the cluster knows directories that are
// not mounted.
func (a *Attacher) Inspect(ctx context.Context, t node.Target) (node.Info, error) {
	if _, err := locatorOf(t); err != nil {
		return node.Info{}, err
	}
	v, err := a.target(t)
	if err != nil {
		return node.Info{}, err
	}
	info := node.Info{Presence: node.Present}
	e, mounted, err := v.find(ctx)
	if err != nil {
		return info, err
	}
	if info.Problem = a.ops.Waiting(v.object(), usual); info.Problem != nil {
		info.Presence = node.Unreachable
	}
	if !mounted {
		return info, nil
	}
	info.Device, info.ReadOnly, info.Backing = v.device(e), e.ReadOnly(), v.name
	if info.Problem = v.fence(ctx); info.Problem != nil {
		info.Presence = node.Lost
		return info, nil
	}
	usage, err := a.query(ctx, v, usual)
	switch {
	case err == nil:
		info.Size, info.Allocated, info.Presence, info.Problem = size(usage), usage.Used, node.Present, nil
	case ctx.Err() != nil:
		return info, err
	case isDead(err):
		info.Presence = node.Lost
		info.Problem = errs.Errorf(errs.Precondition, "the volume's directory was deleted, the Ceph user has no access to it any more, or the cluster has fenced this node's client: %w", err)
	case errors.Is(err, errs.Unavailable):
		info.Presence, info.Problem = node.Unreachable, err
	default:
		return info, err
	}
	return info, nil
}

// fence returns an error if the cluster has fenced the volume's client.
func (v directory) fence(ctx context.Context) error {
	r, err := v.read()
	if err != nil {
		return nil
	}
	status, err := cephmount.StatusOf(ctx, r.Client)
	if err != nil || !status.Blocklisted {
		return nil
	}
	return errs.Errorf(errs.Precondition, "the Ceph cluster has fenced this node's client %s (osd blocklist): data that was not written is lost, and its mount does not work again, also after the fence is lifted", status.Instance)
}

// query asks the cluster for the volume's usage. Its operation has a key of its
// own: it excludes no other one on the volume, as it can wait for ever. Unavailable: the cluster does not
// answer within the bound, or did not answer an earlier call.
func (a *Attacher) query(ctx context.Context, v directory, bound time.Duration) (cephmount.Usage, error) {
	name := v.object() + " (usage)"
	if bound <= usual {
		if err := a.ops.Waiting(name, usual); err != nil {
			return cephmount.Usage{}, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	return deviceop.Do(ctx, a.ops, name, "query", "", func(context.Context) (cephmount.Usage, error) { return cephmount.UsageOf(v.path()) })
}

// Held implements node.Attacher.
func (a *Attacher) Held(ctx context.Context) ([]node.Held, error) {
	table, err := mount.Table(ctx)
	if err != nil {
		return nil, err
	}
	var held []node.Held
	dir := a.mounts()
	for _, e := range table {
		name := filepath.Base(e.Target)
		if e.FSType != cephmount.FSType || filepath.Dir(e.Target) != dir || !namePattern.MatchString(name) {
			continue
		}
		v := a.named(name, access.CephFS{})
		h := node.Held{}
		if r, err := v.read(); err == nil {
			v.locator = r.locator()
		}
		if v.locator.Path != "" {
			h.Locator = v.locator
			if a.config.VolumeID != nil {
				h.Volume = a.config.VolumeID(v.locator)
			}
		}
		h.Device = v.device(e)
		held = append(held, h)
	}
	return held, nil
}
