package ceph

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/engine/newvolume"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// Parameters of a StorageClass, as in ceph-csi. Those that ceph-csi reads on
// nodes are accepted only with the value that describes cleat's nodes.
const (
	keyCluster   = "clusterID"
	keyPool      = "pool"
	keyDataPool  = "dataPool"
	keyFeatures  = "imageFeatures"
	keyFormat    = "imageFormat" // in Rook's examples
	keyMounter   = "mounter"
	keyEncrypted = "encrypted"
	// Of other mounters: without an effect.
	keyOtherMounters = "tryOtherMounters"
	keyLogDir        = "cephLogDir"

	keyConsistency = "consistency" // of groups, as engine local has it
)

func parameterKeys() []string {
	return []string{keyCluster, keyDataPool, keyEncrypted, keyFeatures, keyFormat, keyMounter, keyPool, keyOtherMounters, keyLogDir}
}

// fixed are parameters with one valid value, and why.
var fixed = map[string]struct{ value, reason string }{
	keyFormat:    {"2", "format 1 has no snapshots that can be cloned"},
	keyMounter:   {"rbd", "nodes map images with the kernel's RBD client"},
	keyEncrypted: {"false", "images are not encrypted by this driver"},
}

// refused are parameters of ceph-csi for images, and what to do instead.
var refused = map[string]string{
	"mapOptions":               "the node plugin chooses the options of the mapping; remove it",
	"unmapOptions":             "the node plugin chooses the options of the mapping; remove it",
	"volumeNamePrefix":         nameOfVolume,
	"stripeUnit":               "images have objects of 4 MiB without striping; remove it",
	"stripeCount":              "images have objects of 4 MiB without striping; remove it",
	"objectSize":               "images have objects of 4 MiB without striping; remove it",
	"topologyConstrainedPools": "a class has one pool; make a class for each pool, with allowedTopologies",
}

const nameOfVolume = "the driver finds a volume by the name that it gives to its image or subvolume; remove it"

// defaultFeatures need no right of a node beyond reading and writing images: to
// take over exclusive-lock from a node that died, the kernel adds that node to
// the blocklist, and a user that is allowed to can fence the whole cluster.
func defaultFeatures() []string { return []string{"layering", "deep-flatten"} }

// requires are the image features that the kernel's client supports, and the
// feature that each needs.
var requires = map[string]string{
	"layering": "", "exclusive-lock": "", "object-map": "exclusive-lock", "fast-diff": "object-map", "deep-flatten": "",
}

type settings struct {
	pool, dataPool string
	features       []string
}

// parseSettings validates parameters for a cluster; pools are those that the
// engine serves.
func parseSettings(parameters map[string]string, cluster string, pools []string) (settings, error) {
	s := settings{features: defaultFeatures()}
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if err := s.set(key, parameters[key], cluster, pools); err != nil {
			return settings{}, err
		}
	}
	if s.pool == "" {
		if len(pools) > 1 {
			return settings{}, errs.Errorf(errs.Invalid, "parameter %s is missing; it must be one of %q", keyPool, pools)
		}
		s.pool = pools[0]
	}
	return s, nil
}

func (s *settings) set(key, value, cluster string, pools []string) (err error) {
	if only, ok := fixed[key]; ok {
		if value != only.value {
			return errs.Errorf(errs.Invalid, "%s %s is not possible, only %s: %s", key, errs.Quote(value), only.value, only.reason)
		}
		return nil
	}
	if advice, ok := refused[key]; ok {
		return errs.Errorf(errs.Invalid, "parameter %s is not supported: %s", key, advice)
	}
	switch key {
	case keyOtherMounters, keyLogDir:
	case keyCluster:
		err = checkCluster(value, cluster)
	case keyPool:
		if !slices.Contains(pools, value) {
			return errs.Errorf(errs.Invalid, "%s %s is not a pool of this driver, which has %q (--ceph-pool)", key, errs.Quote(value), pools)
		}
		s.pool = value
	case keyDataPool:
		s.dataPool = value
	case keyFeatures:
		s.features, err = parseFeatures(value)
	default:
		err = unknownParameter(key, parameterKeys())
	}
	return err
}

func unknownParameter(key string, known []string) error {
	if near := errs.Nearest(key, known); near != "" {
		return errs.Errorf(errs.Invalid, "parameter %s is not known; did you mean %s?", errs.Quote(key), near)
	}
	return errs.Errorf(errs.Invalid, "parameter %s is not known; known are %s", errs.Quote(key), strings.Join(known, ", "))
}

// checkSnapshot validates a request for a snapshot but for its source.
func checkSnapshot(req volume.SnapshotRequest, cluster string) error {
	return cmp.Or(newvolume.CheckName(req.Name), checkSnapshotParameters(req.Parameters, cluster), notForeign(req.Source, "take snapshots of it"))
}

// checkSnapshotParameters validates those of a VolumeSnapshotClass, as
// ceph-csi's and Rook's name the cluster.
func checkSnapshotParameters(parameters map[string]string, cluster string) error {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		switch key {
		case keyCluster:
			if err := checkCluster(parameters[key], cluster); err != nil {
				return err
			}
		case keyPool, "snapshotNamePrefix":
			return errs.Errorf(errs.Invalid, "parameter %s is not supported: a snapshot is part of its volume's image and has a name of its own; remove it", key)
		default:
			return errs.Errorf(errs.Invalid, "parameter %s is not known; snapshots have only clusterID", errs.Quote(key))
		}
	}
	return nil
}

// checkGroup validates a request for a group. byMember: its snapshots can be of
// different moments.
func checkGroup(req volume.GroupRequest, cluster string) (byMember bool, err error) {
	if err := newvolume.CheckName(req.Name); err != nil {
		return false, err
	}
	if len(req.Sources) == 0 {
		return false, errs.Errorf(errs.Invalid, "a group needs at least one volume")
	}
	for _, key := range slices.Sorted(maps.Keys(req.Parameters)) {
		value := req.Parameters[key]
		switch {
		case key == keyCluster:
			err = checkCluster(value, cluster)
		case key != keyConsistency:
			err = unknownParameter(key, []string{keyCluster, keyConsistency})
		case value == "member":
			byMember = true
		case value != "group":
			err = errs.Errorf(errs.Invalid, "%s %s is not known; known are group and member", key, errs.Quote(value))
		}
		if err != nil {
			return false, err
		}
	}
	for _, id := range req.Sources {
		if err := notForeign(id, "take snapshots of it"); err != nil {
			return false, err
		}
	}
	return byMember, nil
}

func checkCluster(value, cluster string) error {
	if value != cluster {
		return errs.Errorf(errs.Invalid, "%s %s is not the cluster of this driver, which is %s", keyCluster, errs.Quote(value), errs.Quote(cluster))
	}
	return nil
}

func parseFeatures(value string) ([]string, error) {
	var features []string
	for name := range strings.SplitSeq(value, ",") {
		name = strings.TrimSpace(name)
		if _, known := requires[name]; !known {
			return nil, errs.Errorf(errs.Invalid, "%s %s: nodes can use images with %s only, as the kernel's RBD client supports no others",
				keyFeatures, errs.Quote(name), strings.Join(defaultFeatures(), ", "))
		}
		features = append(features, name)
	}
	for _, name := range features {
		if needs := requires[name]; needs != "" && !slices.Contains(features, needs) {
			return nil, errs.Errorf(errs.Invalid, "%s %s: %s needs %s", keyFeatures, errs.Quote(value), name, needs)
		}
	}
	if !slices.Contains(features, "layering") { // snapshots are restored by cloning
		features = append(features, "layering")
	}
	return features, nil
}
