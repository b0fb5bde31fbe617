package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/errs"
)

// AttachRequest is the request of Attach.
type AttachRequest struct {
	Volume string // name or id
	// Target is the absolute path of the directory or device file: it does not
	// exist, or is an empty directory.
	Target   string
	ReadOnly bool
	// nil: as created; a mounted directory for a foreign volume
	Capability *Capability
	// Context is the volume_context of a static volume, which the driver cannot
	// look up. Volume is then its id.
	Context map[string]string
}

// attachment is the record of a volume in use here: written before the first
// call of an attach, removed after the last call of a detach.
type attachment struct {
	Driver         string            `json:"driver"`
	Volume         string            `json:"volume"` // id
	Context        map[string]string `json:"volumeContext,omitempty"`
	Node           string            `json:"node,omitempty"`
	Capability     Capability        `json:"capability"`
	ReadOnly       bool              `json:"readOnly,omitempty"`   // of ControllerPublishVolume
	Controller     bool              `json:"controller,omitempty"` // a step is ControllerPublishVolume
	PublishContext map[string]string `json:"publishContext,omitempty"`
	Staging        string            `json:"staging,omitempty"` // empty: no NodeStageVolume
	Targets        []target          `json:"targets"`
}

func (a *attachment) id() (driver, key string) { return a.Driver, a.Volume }

// Target is a path where a volume is attached.
type Target struct {
	Path     string `json:"path"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	// false after an interrupted attach
	Published bool `json:"published"`
}

// target includes the directory that the driver removes and detach creates
// again.
type target struct {
	Target
	Was *directory `json:"was,omitempty"`
}

type directory struct {
	Mode fs.FileMode `json:"mode"`
	UID  uint32      `json:"uid"`
	GID  uint32      `json:"gid"`
}

func (a *attachment) targetPaths() string {
	var paths []string
	for _, t := range a.Targets {
		paths = append(paths, t.Path)
	}
	if len(paths) == 0 {
		return "no target (a detach was interrupted: detach again)"
	}
	return strings.Join(paths, ", ")
}

func (a *attachment) find(path string) int {
	return slices.IndexFunc(a.Targets, func(t target) bool { return t.Path == path })
}

func (a *attachment) published() (path, staging string) {
	if a == nil {
		return "", ""
	}
	for _, t := range a.Targets {
		if t.Published {
			return t.Path, a.Staging
		}
	}
	return "", a.Staging
}

// Attach publishes a volume at a path: ControllerPublishVolume, NodeStageVolume
// and NodePublishVolume, as announced. A repeat continues, also after a restart
// of the machine.
func (d *Driver) Attach(ctx context.Context, req AttachRequest) (out Volume, err error) {
	find := d.findVolume
	if req.Context != nil {
		find = d.findStatic(req.Context)
	}
	err = locked(ctx, d, find, req.Volume, func(n *volumeRecord) error {
		isNew, err := d.planAttach(n, req)
		if err != nil {
			return err
		}
		if err := d.state.put(n.attachment); err != nil {
			return err
		}
		if err := d.publish(ctx, n, req.Target); err != nil {
			if isNew && isFinal(err) {
				d.undoAttach(ctx, n, req.Target)
			}
			return err
		}
		out = n.view()
		return nil
	})
	return out, err
}

// findStatic finds an attached volume, or describes one that is only known by
// its context.
func (d *Driver) findStatic(volumeContext map[string]string) func(ctx context.Context, ref string) (*volumeRecord, error) {
	return func(_ context.Context, ref string) (*volumeRecord, error) {
		if ref == "" {
			return nil, errs.Errorf(errs.Invalid, "the id of the volume is empty")
		}
		known, err := d.knownVolumes()
		if err != nil {
			return nil, err
		}
		n, ok := byRef(known, ref)
		switch {
		case !ok:
			return d.foreign(&csi.Volume{VolumeId: ref, VolumeContext: volumeContext}), nil
		case !maps.Equal(n.Context, volumeContext):
			return nil, errs.Errorf(errs.Exists, "volume %s is known with another volume_context; detach it first, or omit the context", n.Name)
		}
		return n, nil
	}
}

// planAttach adds the target to the volume's attachment; isNew: it was not
// there.
func (d *Driver) planAttach(n *volumeRecord, req AttachRequest) (isNew bool, err error) {
	if _, err := usable(n, nil); err != nil {
		return false, err
	}
	capability := n.Capability
	if req.Capability != nil {
		capability = *req.Capability
	}
	if err := d.needCapability(capability); err != nil {
		return false, err
	}
	a := n.attachment
	if a == nil {
		if a, err = d.newAttachment(n, capability, req.ReadOnly); err != nil {
			return false, err
		}
	}
	if req.Capability != nil && !a.Capability.equal(capability) {
		return false, errs.Errorf(errs.Precondition, "volume %s is already attached at %s with another capability (%s); detach it first", n.Name, a.targetPaths(), a.Capability)
	}
	n.attachment = a
	if i := a.find(req.Target); i >= 0 {
		if a.Targets[i].ReadOnly != req.ReadOnly {
			return false, errs.Errorf(errs.Exists, "volume %s is attached at %s already, with read-only %v; detach it first", n.Name, req.Target, !req.ReadOnly)
		}
		return false, nil
	}
	t, err := newTarget(req.Target, a.Capability.Block, req.ReadOnly)
	a.Targets = append(a.Targets, t)
	return true, err
}

func (d *Driver) newAttachment(n *volumeRecord, capability Capability, readOnly bool) (*attachment, error) {
	a := &attachment{Driver: d.info.Name, Volume: n.ID, Context: n.Context, Node: d.info.Node, Capability: capability, ReadOnly: readOnly}
	if d.announced[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME] {
		if a.Node == "" {
			return nil, errs.Errorf(errs.Unsupported, "driver %s needs the id of this node to publish a volume, and does not answer NodeGetInfo with one; give the socket of its node service with --node-endpoint", d.info.Name)
		}
		a.Controller = true
	}
	if d.announced[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		a.Staging = strings.TrimSuffix(d.state.path(a), extension)
	}
	return a, nil
}

func newTarget(path string, block, readOnly bool) (target, error) {
	t := target{Target: Target{Path: path, ReadOnly: readOnly}}
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" || strings.ContainsRune(path, 0) {
		return t, errs.Errorf(errs.Invalid, "target %q: give an absolute, clean path", path)
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return t, nil
	case err != nil:
		return t, fmt.Errorf("target: %w", err)
	case block:
		return t, errs.Errorf(errs.Invalid, "target %s exists: a block volume appears as a file of its own, name one that does not exist", path)
	case !info.IsDir():
		return t, errs.Errorf(errs.Invalid, "target %s is not a directory; use an empty or a new directory (or --block for a device)", path)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return t, fmt.Errorf("target: %w", err)
	}
	if len(entries) > 0 {
		return t, errs.Errorf(errs.Invalid, "target %s is not empty, the volume would hide what is in it; name an empty or a new directory", path)
	}
	t.Was = &directory{Mode: info.Mode().Perm()}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		t.Was.UID, t.Was.GID = s.Uid, s.Gid
	}
	return t, nil
}

func (t target) restore() error {
	if t.Was == nil {
		return nil
	}
	err := os.Mkdir(t.Path, t.Was.Mode)
	if errors.Is(err, fs.ErrExist) {
		return nil // still in place
	}
	if err == nil {
		err = errors.Join(os.Chmod(t.Path, t.Was.Mode), os.Chown(t.Path, int(t.Was.UID), int(t.Was.GID)))
	}
	if err != nil {
		return fmt.Errorf("create the directory again that was at the target: %w", err)
	}
	return nil
}

// publish runs the steps for one target; all of them can be repeated.
func (d *Driver) publish(ctx context.Context, n *volumeRecord, path string) error {
	a := n.attachment
	if a.Controller {
		if err := d.controllerPublish(ctx, a); err != nil {
			return err
		}
	}
	if a.Staging != "" {
		if err := os.MkdirAll(a.Staging, 0o750); err != nil {
			return fmt.Errorf("staging directory: %w", err)
		}
		_, err := d.node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
			VolumeId: a.Volume, PublishContext: a.PublishContext, StagingTargetPath: a.Staging,
			VolumeCapability: a.Capability.message(), Secrets: d.config.Secrets, VolumeContext: a.Context,
		})
		if err != nil {
			return err
		}
	}
	t := &a.Targets[a.find(path)]
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { // the orchestrator's task
		return fmt.Errorf("target: %w", err)
	}
	_, err := d.node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: a.Volume, PublishContext: a.PublishContext, StagingTargetPath: a.Staging, TargetPath: path,
		VolumeCapability: a.Capability.message(), Readonly: t.ReadOnly, Secrets: d.config.Secrets, VolumeContext: a.Context,
	})
	if err != nil {
		return err
	}
	t.Published = true
	if err := d.state.put(a); err != nil || n.Grow == 0 {
		return err
	}
	if err := d.nodeExpand(ctx, n, 0); err != nil {
		d.config.Notice(fmt.Sprintf("volume %s is attached, but has not grown yet: %v", n.Name, err))
		return nil
	}
	return d.save(n)
}

// controllerPublish calls with the arguments of the first target: the volume is
// published to the node once.
func (d *Driver) controllerPublish(ctx context.Context, a *attachment) error {
	readOnly := a.ReadOnly && d.announced[csi.ControllerServiceCapability_RPC_PUBLISH_READONLY]
	answer, err := d.controller.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
		VolumeId: a.Volume, NodeId: a.Node, VolumeCapability: a.Capability.message(), Readonly: readOnly,
		Secrets: d.config.Secrets, VolumeContext: a.Context,
	})
	if err != nil {
		return err
	}
	a.PublishContext = answer.GetPublishContext()
	return d.state.put(a)
}

// undoAttach reverts what a refused attach began. What cannot be reverted now
// stays in the attachment, for a detach.
func (d *Driver) undoAttach(ctx context.Context, n *volumeRecord, path string) {
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := d.unpublish(short, n, []string{path}); err != nil {
		d.config.Notice(fmt.Sprintf("volume %s: the attach could not be reverted completely, detach it: %v", n.Name, err))
	}
}

// Detach unpublishes a volume from a path (empty: all); the last one is
// followed by NodeUnstageVolume and ControllerUnpublishVolume, as announced. A
// volume that is not attached is no error.
func (d *Driver) Detach(ctx context.Context, ref, path string) error {
	return locked(ctx, d, d.findVolume, ref, func(n *volumeRecord) error {
		a := n.attachment
		if a == nil {
			return nil
		}
		paths := []string{path}
		if path == "" {
			paths = nil
			for _, t := range a.Targets {
				paths = append(paths, t.Path)
			}
		} else if a.find(path) < 0 && len(a.Targets) > 0 {
			return errs.Errorf(errs.NotFound, "volume %s is not attached at %s but at %s", n.Name, path, a.targetPaths())
		}
		return d.unpublish(ctx, n, paths)
	})
}

// unpublish undoes the targets at paths, and everything else when no target is
// left. A target stays in the attachment until it is unpublished.
func (d *Driver) unpublish(ctx context.Context, n *volumeRecord, paths []string) error {
	a := n.attachment
	for _, path := range paths {
		i := a.find(path)
		if i < 0 {
			continue
		}
		_, err := d.node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: a.Volume, TargetPath: path})
		if err != nil && codeOf(err) != codes.NotFound {
			return err
		}
		if err := a.Targets[i].restore(); err != nil {
			return err
		}
		a.Targets = slices.Delete(a.Targets, i, i+1)
		if err := d.state.put(a); err != nil {
			return err
		}
	}
	if len(a.Targets) > 0 {
		return nil
	}
	if err := d.unstage(ctx, n); err != nil {
		return err
	}
	// A driver restarted without the capability holds no grant.
	if a.Controller && d.announced[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME] {
		_, err := d.controller.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: a.Volume, NodeId: a.Node, Secrets: d.config.Secrets})
		if err != nil && codeOf(err) != codes.NotFound {
			return err
		}
	}
	n.attachment = nil
	return d.state.drop(a)
}

func (d *Driver) unstage(ctx context.Context, n *volumeRecord) error {
	a := n.attachment
	if a.Staging == "" {
		return nil
	}
	_, err := d.node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: a.Volume, StagingTargetPath: a.Staging})
	if err != nil && codeOf(err) != codes.NotFound {
		return err
	}
	// Only an empty directory: content or mounts are the driver's.
	if err := os.Remove(a.Staging); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.config.Notice(fmt.Sprintf("the staging directory of volume %s stays: %v", n.Name, err))
	}
	return nil
}

// At returns the volume attached at a path.
func (d *Driver) At(_ context.Context, path string) (Volume, error) {
	known, err := d.knownVolumes()
	if err != nil {
		return Volume{}, err
	}
	for _, n := range known {
		if n.attachment != nil && n.attachment.find(path) >= 0 {
			return n.view(), nil
		}
	}
	return Volume{}, errs.Errorf(errs.NotFound, "no volume of driver %s is attached at %s", d.info.Name, path)
}
