//go:build ceph

package ceph

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"syscall"

	"github.com/cleatproject/cleat/errs"
)

// fsManager sends commands about the subvolumes of a group to the cluster's
// manager. Methods are idempotent. EAGAIN: a copy, or the removal of files, has
// not ended.
type fsManager struct {
	conn      *Connection
	fs, group string
}

// do runs "fs COMMAND". Its errors are those of the cluster.
func (m fsManager) do(command string, args map[string]any) ([]byte, error) {
	all := map[string]any{"prefix": "fs " + command, "vol_name": m.fs, "group_name": m.group, "format": "json"}
	maps.Copy(all, args)
	text, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	out, status, err := m.conn.mgr.command(text)
	switch {
	case is(err, syscall.EAGAIN):
		return nil, errs.Errorf(errs.Busy, "fs %s: %w: %s; a copy, or the removal of files, goes on: repeat the call", command, plain(err), errs.Clip(strings.TrimSpace(status), 300))
	case is(err, syscall.EACCES, syscall.EPERM):
		return nil, errs.Errorf(errs.Denied, "fs %s: %w: the Ceph user of the controller needs the capability mgr 'allow rw'", command, plain(err))
	}
	return out, commandError(err, status, "fs %s", command)
}

// make creates a subvolume, or sets the size of an existing one.
func (m fsManager) make(name string, size int64, pool string) error {
	// All users can write, as in ceph-csi: a pod does not have to run as root.
	args := map[string]any{"sub_name": name, "size": size, "mode": "0777"}
	if pool != "" {
		args["pool_layout"] = pool
	}
	_, err := m.do("subvolume create", args)
	return err
}

// grow enlarges a subvolume, whose quota the caller has read, to a size in bytes.
// Not with no_shrink: that compares the size with the usage instead of the quota,
// and clients enforce a quota late.
func (m fsManager) grow(name string, size int64) error {
	_, err := m.do("subvolume resize", map[string]any{"sub_name": name, "new_size": fmt.Sprint(size)})
	return err
}

// remove removes a subvolume in any state, but for its snapshots.
func (m fsManager) remove(name string) error {
	_, err := m.do("clone cancel", map[string]any{"clone_name": name})
	if is(err, syscall.EOPNOTSUPP, syscall.EINVAL) { // it is no copy, or a complete one
		err = nil
	}
	if ignoreMissing(err) != nil {
		return err
	}
	args := map[string]any{"sub_name": name, "force": true, "retain_snapshots": true}
	_, err = m.do("subvolume rm", args)
	if is(err, syscall.EINVAL) { // a manager that was killed had not written its metadata yet
		delete(args, "retain_snapshots")
		_, err = m.do("subvolume rm", args)
	}
	return ignoreMissing(err)
}

func (m fsManager) snapshot(name, snap string) error {
	_, err := m.do("subvolume snapshot create", map[string]any{"sub_name": name, "snap_name": snap})
	if is(err, syscall.EMLINK) {
		err = errs.Errorf(errs.Exhausted, "subvolume %s has as many snapshots as the cluster allows (mds_max_snaps_per_dir); delete some: %w", name, err)
	}
	return err
}

func (m fsManager) removeSnapshot(name, snap string) error {
	_, err := m.do("subvolume snapshot rm", map[string]any{"sub_name": name, "snap_name": snap, "force": true})
	return ignoreMissing(err)
}

// clone starts the copy of a snapshot to a new subvolume.
func (m fsManager) clone(name, snap, target, pool string) error {
	args := map[string]any{"sub_name": name, "snap_name": snap, "target_sub_name": target, "target_group_name": m.group}
	if pool != "" {
		args["pool_layout"] = pool
	}
	_, err := m.do("subvolume snapshot clone", args)
	return err
}

func (m fsManager) cloneStatus(name string) (cloneStatus, error) {
	out, err := m.do("clone status", map[string]any{"clone_name": name})
	if err != nil {
		return cloneStatus{}, err
	}
	return parseCloneStatus(out)
}

// makeGroup creates the group, if it does not exist.
func (m fsManager) makeGroup() error {
	_, err := m.do("subvolumegroup getpath", nil)
	if is(err, syscall.ENOENT) {
		_, err = m.do("subvolumegroup create", nil)
	}
	return err
}

// subvolumeInfo is the part of "fs subvolume info" that adopted volumes need.
type subvolumeInfo struct {
	Path  string
	State string
	Quota json.RawMessage `json:"bytes_quota"` // a number or "infinite"
}

func (m fsManager) info(name string) (i subvolumeInfo, err error) {
	out, err := m.do("subvolume info", map[string]any{"sub_name": name})
	if err == nil {
		err = json.Unmarshal(out, &i)
	}
	return i, err
}
