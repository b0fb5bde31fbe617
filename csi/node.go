package csi

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// NodeConfig configures a Node.
type NodeConfig struct {
	Manager    *node.Manager
	Operations *op.Operations
	// NodeID is the node's name, with MultiNode a part of the id unless Static.
	NodeID string
	// Deployment: with ControllerPublish, volumes are used only on the node
	// that has the grant.
	Deployment Deployment
	// InlineParameters are the engine's parameters of inline volumes; nil: there
	// are no inline volumes, and the Manager refuses them.
	InlineParameters []string
	// Admission admits this node to stage and publish, not to undo that.
	Admission Admission
	// Client is this node's current identity. It fails if that cannot be read.
	Client func() (volume.Client, error)
	// Named is Client with the addresses of the node id; nil: Client.
	Named func() (volume.Client, error)
	// TrimCheck is the interval of RunTrims; zero: a minute.
	TrimCheck time.Duration
	Logger    *slog.Logger // nil: no log
}

// Node is the Node service.
type Node struct {
	spec.UnimplementedNodeServer
	config NodeConfig
}

// NewNode creates a Node.
func NewNode(c NodeConfig) *Node {
	c.TrimCheck = cmp.Or(c.TrimCheck, time.Minute)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Named == nil {
		c.Named = c.Client
	}
	return &Node{config: c}
}

// checkGrant requires a grant for this node, unless the storage does.
func (s *Node) checkGrant(id string, publishContext map[string]string) error {
	if d := s.config.Deployment; !d.ControllerPublish || d.StorageGrants {
		return nil
	}
	switch to := publishContext[keyGrantedTo]; to {
	case s.config.NodeID:
		return nil
	case "":
		return errs.Errorf(errs.Precondition, "publish_context holds no grant of volume %s; call ControllerPublishVolume for node %s first and pass on its publish_context", id, s.config.NodeID)
	default:
		return errs.Errorf(errs.Precondition, "volume %s is granted to node %s, this is node %s", id, to, s.config.NodeID)
	}
}

// runAdmitted runs an operation with this node admitted. The operation enters,
// not the call, so that a fence also waits for work whose caller went away.
func (s *Node) runAdmitted(ctx context.Context, r proto.Message, id volume.ID, keys []string, fn func(ctx context.Context) error) error {
	return s.inTime(ctx, id, func(ctx context.Context) error {
		return run(ctx, s.config.Operations, r, keys, func(ctx context.Context) error {
			self, err := s.config.Client()
			if err != nil {
				return err
			}
			leave, err := s.config.Admission.Enter(ctx, self)
			if err != nil {
				return err
			}
			defer leave()
			return s.folding(ctx, id, fn(ctx))
		})
	})
}

// answerTime is how long before its deadline a call answers, or a tenth of its
// time: the client drops what comes later.
const answerTime = 2 * time.Second

// inTime makes a call on a volume that waits until its deadline answer with what
// it waits for, as storage that cannot be reached. Its operation goes on.
func (s *Node) inTime(ctx context.Context, id volume.ID, call func(context.Context) error) error {
	deadline, limited := ctx.Deadline()
	if !limited {
		return call(ctx)
	}
	early, cancel := context.WithDeadline(ctx, deadline.Add(-min(answerTime, time.Until(deadline)/10)))
	defer cancel()
	err := call(early)
	if err == nil || ctx.Err() != nil || early.Err() == nil || !errors.Is(err, early.Err()) || errs.KindOf(err) != errs.Internal {
		return err
	}
	if waits := s.config.Manager.Waiting(ctx, id); waits != nil {
		return errs.Errorf(errs.Unavailable, "%w; it waits, as %w", err, waits)
	}
	return errs.Errorf(errs.Unavailable, "%w", err)
}

// NodeStageVolume mounts a volume at its staging path.
func (s *Node) NodeStageVolume(ctx context.Context, r *spec.NodeStageVolumeRequest) (*spec.NodeStageVolumeResponse, error) {
	req, err := s.stageRequest(r)
	if err != nil {
		return nil, err
	}
	if err := s.checkGrant(r.GetVolumeId(), r.GetPublishContext()); err != nil {
		return nil, err
	}
	return &spec.NodeStageVolumeResponse{}, s.runAdmitted(ctx, r, req.Volume, []string{nodeVolumeKey(req.Volume)}, func(ctx context.Context) error {
		return s.config.Manager.Stage(ctx, req)
	})
}

func (s *Node) stageRequest(r *spec.NodeStageVolumeRequest) (req node.StageRequest, err error) {
	if err := cmp.Or(
		checkID("volume_id", r.GetVolumeId()),
		checkPath("staging_target_path", r.GetStagingTargetPath()),
		checkMap("publish_context", r.GetPublishContext()),
		checkMap("volume_context", r.GetVolumeContext()),
	); err != nil {
		return req, err
	}
	req.Volume, req.Staging = volume.ID(r.GetVolumeId()), r.GetStagingTargetPath()
	req.Secrets = r.GetSecrets()
	if req.Capability, err = s.config.Deployment.parseCapability("volume_capability", r.GetVolumeCapability()); err != nil {
		return req, err
	}
	if req.Locator, err = parseLocator(r.GetVolumeContext(), r.GetPublishContext()); err != nil {
		return req, err
	}
	if s.config.Deployment.Static && req.Locator == nil {
		return req, invalidf("volume_context has no locator: this driver serves only volumes whose volume_context (volumeAttributes of the PersistentVolume) says where they are, for example targetType=tcp, targetAddr, nqn and uuid")
	}
	if d := s.config.Deployment; d.MultiNode && d.SharedFS == "" { // engines of one node create file systems themselves
		req.Format, err = d.parseFormat(r.GetVolumeContext(), &req.Capability)
	}
	return req, err
}

// parseFormat reports whether this node creates the volume's file system, and
// completes the capability with its type.
func (d Deployment) parseFormat(volumeContext map[string]string, c *volume.Capability) (bool, error) {
	t, err := d.parseFSType("volume_context["+access.KeyFormat+"]", volumeContext[access.KeyFormat])
	switch {
	case err != nil:
		return false, err
	case t == "" || c.Block, c.Mode.IsMultiNode(): // several nodes only read it
		return false, nil
	case c.FSType != "" && c.FSType != t:
		return false, invalidf("volume_capability has fs_type %s, but the volume was created for %s (volume_context[%s])", c.FSType, t, access.KeyFormat)
	}
	c.FSType = t
	return true, nil
}

// NodeUnstageVolume undoes NodeStageVolume, and cancels one in flight.
func (s *Node) NodeUnstageVolume(ctx context.Context, r *spec.NodeUnstageVolumeRequest) (*spec.NodeUnstageVolumeResponse, error) {
	req := node.UnstageRequest{Volume: volume.ID(r.GetVolumeId()), Staging: r.GetStagingTargetPath()}
	response := &spec.NodeUnstageVolumeResponse{}
	if known, err := s.checkUndo(ctx, req.Volume, "staging_target_path", req.Staging); err != nil || !known {
		return response, err
	}
	return response, s.inTime(ctx, req.Volume, func(ctx context.Context) error {
		return undo(ctx, s.config.Operations, r, []string{nodeVolumeKey(req.Volume)}, nil, func(ctx context.Context) error {
			return s.config.Manager.Unstage(ctx, req)
		})
	})
}

// checkUndo checks a request that undoes something at a path. A path that is
// not absolute and clean is an error only for a volume that this node knows:
// for an unknown one there is nothing to undo, whatever the path.
func (s *Node) checkUndo(ctx context.Context, id volume.ID, field, path string) (known bool, err error) {
	if err := cmp.Or(checkID("volume_id", string(id)), requireString(field, path, maxPath)); err != nil {
		return false, err
	}
	malformed := checkPath(field, path)
	if malformed == nil {
		return true, nil
	}
	if known, err := s.config.Manager.IsRecorded(ctx, id); err != nil || !known {
		return false, err
	}
	return true, malformed
}

// NodePublishVolume mounts a volume at its target path.
func (s *Node) NodePublishVolume(ctx context.Context, r *spec.NodePublishVolumeRequest) (*spec.NodePublishVolumeResponse, error) {
	req, err := s.publishRequest(r)
	if err != nil {
		return nil, err
	}
	if req.Inline == nil { // inline volumes do not exist before
		if err := s.checkGrant(r.GetVolumeId(), r.GetPublishContext()); err != nil {
			return nil, err
		}
	}
	keys := []string{nodeVolumeKey(req.Volume), targetKey(req.Target)}
	return &spec.NodePublishVolumeResponse{}, s.runAdmitted(ctx, r, req.Volume, keys, func(ctx context.Context) error {
		return s.config.Manager.Publish(ctx, req)
	})
}

// publishRequest checks and translates a request. Precondition: a volume that
// is not ephemeral needs a staging path.
func (s *Node) publishRequest(r *spec.NodePublishVolumeRequest) (req node.PublishRequest, err error) {
	staging, target := r.GetStagingTargetPath(), r.GetTargetPath()
	if err := cmp.Or(
		checkID("volume_id", r.GetVolumeId()),
		checkPath("target_path", target),
		checkMap("publish_context", r.GetPublishContext()),
		checkMap("volume_context", r.GetVolumeContext()),
	); err != nil {
		return req, err
	}
	if staging != "" {
		if err := checkPath("staging_target_path", staging); err != nil {
			return req, err
		}
	}
	c, err := s.config.Deployment.parseCapability("volume_capability", r.GetVolumeCapability())
	if err != nil {
		return req, err
	}
	if target == staging || strings.HasPrefix(staging, target+"/") {
		return req, invalidf("target_path %s would hide staging_target_path %s", errs.Quote(target), errs.Quote(staging))
	}
	req = node.PublishRequest{
		Volume: volume.ID(r.GetVolumeId()), Staging: staging, Target: target, Capability: c,
		ReadOnly: r.GetReadonly() || isReadOnlyGrant(r.GetPublishContext()), Secrets: r.GetSecrets(),
	}
	if req.Inline, err = s.parseInline(r.GetVolumeContext(), c); err != nil {
		return req, err
	}
	if req.Inline != nil {
		req.Staging = ""
		return req, nil
	}
	if staging == "" {
		return req, errs.Errorf(errs.Precondition, "staging_target_path is missing: this plugin stages volumes first (STAGE_UNSTAGE_VOLUME)")
	}
	_, err = parseLocator(r.GetVolumeContext(), r.GetPublishContext())
	return req, err
}

// parseInline returns nil if the context declares no inline volume.
func (s *Node) parseInline(volumeContext map[string]string, c volume.Capability) (*node.InlineVolume, error) {
	switch v := volumeContext[keyEphemeral]; v {
	case "", "false":
		return nil, nil
	case "true":
	default:
		return nil, invalidf("volume_context[%s] is %s; true or false is needed", keyEphemeral, errs.Quote(v))
	}
	if c.Block {
		return nil, invalidf("an inline ephemeral volume cannot be a block volume; use access type mount")
	}
	parameters, fsType, err := s.config.Deployment.parseParameters("volume_context", volumeContext, volume.Filesystem, c.FSType)
	if err != nil {
		return nil, err
	}
	e := &node.InlineVolume{FSType: fsType, Parameters: parameters}
	if size, ok := parameters[keySize]; ok {
		if e.Size.Required, err = parseQuantity("volume_context["+keySize+"]", size); err != nil {
			return nil, err
		}
		delete(parameters, keySize)
	}
	if s.config.InlineParameters == nil {
		return e, nil
	}
	// The engine knows its own keys alone.
	known := append([]string{keySize, keyShortFSType}, s.config.InlineParameters...)
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if near := errs.Nearest(key, known); slices.Contains(known, key) {
			continue
		} else if near != "" {
			return nil, invalidf("attribute %s of the inline volume is not known; did you mean %q?", errs.Quote(key), near)
		}
		return nil, invalidf("attribute %s of the inline volume is not known; known are %s", errs.Quote(key), strings.Join(known, ", "))
	}
	return e, nil
}

// NodeUnpublishVolume undoes NodePublishVolume, and cancels one in flight at
// the same target, but not at others.
func (s *Node) NodeUnpublishVolume(ctx context.Context, r *spec.NodeUnpublishVolumeRequest) (*spec.NodeUnpublishVolumeResponse, error) {
	req := node.UnpublishRequest{Volume: volume.ID(r.GetVolumeId()), Target: r.GetTargetPath()}
	response := &spec.NodeUnpublishVolumeResponse{}
	if known, err := s.checkUndo(ctx, req.Volume, "target_path", req.Target); err != nil || !known {
		return response, err
	}
	return response, s.inTime(ctx, req.Volume, func(ctx context.Context) error {
		return undo(ctx, s.config.Operations, r, []string{targetKey(req.Target)}, []string{nodeVolumeKey(req.Volume)}, func(ctx context.Context) error {
			return s.config.Manager.Unpublish(ctx, req)
		})
	})
}
