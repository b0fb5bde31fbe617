package ceph

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/cleatproject/cleat/engine/newvolume"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// Further parameters of a StorageClass for CephFS, as in ceph-csi.
const (
	keyFSName  = "fsName"
	keyBacking = "backingSnapshot"
)

// FSType is the type of file system of CephFS volumes, as the kernel names it.
const FSType = "ceph"

func fsParameterKeys() []string {
	return []string{keyBacking, keyCluster, keyEncrypted, keyFSName, keyMounter, keyPool}
}

// maxQuota is a size below an exbibyte.
const maxQuota = 1<<60 - granule

type fsSettings struct {
	pool string // with the data; empty: that of the group
	// backing: a volume from a snapshot shows it, and is read-only. nil: if the
	// request only reads.
	backing *bool
}

// parseFSSettings validates parameters for a file system of a cluster.
func parseFSSettings(parameters map[string]string, cluster, fs string) (s fsSettings, err error) {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if err := s.set(key, parameters[key], cluster, fs); err != nil {
			return fsSettings{}, err
		}
	}
	return s, nil
}

func (s *fsSettings) set(key, value, cluster, fs string) error {
	switch key {
	case keyCluster:
		return checkCluster(value, cluster)
	case keyFSName:
		if value != fs {
			return errs.Errorf(errs.Invalid, "%s %s is not the file system of this driver, which is %s (--cephfs-name)", key, errs.Quote(value), errs.Quote(fs))
		}
	case keyPool:
		if value == "" {
			return errs.Errorf(errs.Invalid, "parameter %s is empty; name a data pool of the file system, or remove it", key)
		}
		s.pool = value
	case keyMounter:
		if value != "kernel" {
			return errs.Errorf(errs.Invalid, "%s %s is not possible, only kernel: nodes mount with the kernel's CephFS client", key, errs.Quote(value))
		}
	case keyEncrypted:
		if value != "false" {
			return errs.Errorf(errs.Invalid, "%s %s is not possible, only false: files are not encrypted by this driver", key, errs.Quote(value))
		}
	case keyBacking:
		on := value == "true"
		if !on && value != "false" {
			return errs.Errorf(errs.Invalid, "%s %s is neither true nor false", key, errs.Quote(value))
		}
		s.backing = &on
	case "volumeNamePrefix":
		return errs.Errorf(errs.Invalid, "parameter %s is not supported: %s", key, nameOfVolume)
	case "kernelMountOptions", "fuseMountOptions":
		return errs.Errorf(errs.Invalid, "parameter %s is not supported: the node plugin chooses the options of the mount; remove it", key)
	default:
		return unknownParameter(key, fsParameterKeys())
	}
	return nil
}

// fsPlan is a valid create request.
type fsPlan struct {
	volume.CreateRequest
	settings fsSettings
}

func planFS(req volume.CreateRequest, cluster, fs string) (fsPlan, error) {
	switch {
	case req.Content == volume.Raw:
		return fsPlan{}, errs.Errorf(errs.Invalid, "a CephFS volume is a directory and no block device; request it with a file system (volumeMode: Filesystem), or use an RBD volume")
	case req.FSType != "" && req.FSType != FSType:
		return fsPlan{}, errs.Errorf(errs.Invalid, "a CephFS volume cannot have file system %s; remove csi.storage.k8s.io/fstype from the StorageClass", errs.Quote(req.FSType))
	}
	req.FSType = ""
	if err := newvolume.Check(req); err != nil {
		return fsPlan{}, err
	}
	s, err := parseFSSettings(req.Parameters, cluster, fs)
	if err != nil {
		return fsPlan{}, err
	}
	switch backing := s.backing != nil && *s.backing; {
	case backing && req.Source.Snapshot == "":
		return fsPlan{}, errs.Errorf(errs.Invalid, "%s true needs a snapshot as the source of the volume", keyBacking)
	case backing && !req.ReadOnly:
		return fsPlan{}, errs.Errorf(errs.Invalid, "%s true is for volumes that only read (in Kubernetes ReadOnlyMany): a snapshot cannot be written", keyBacking)
	}
	req.FSType, req.Parameters = FSType, maps.Clone(req.Parameters)
	return fsPlan{CreateRequest: req, settings: s}, nil
}

// showsSnapshot reports whether the volume shows its snapshot without a copy.
func (p fsPlan) showsSnapshot() bool {
	if p.Source.Snapshot == "" {
		return false
	}
	if p.settings.backing != nil {
		return *p.settings.backing
	}
	return p.ReadOnly
}

// possibleFS refuses sizes beyond those of quotas.
func possibleFS(size int64, err error) (int64, error) {
	if err == nil && size > maxQuota {
		return 0, errs.Errorf(errs.OutOfRange, "a volume of %d bytes is not possible: sizes are below an exbibyte", size)
	}
	return size, err
}

// fsPools is a file system in the output of "fs ls".
type fsPools struct {
	Name         string
	MetadataPool string   `json:"metadata_pool"`
	DataPools    []string `json:"data_pools"`
	DataPoolIDs  []int64  `json:"data_pool_ids"`
}

// chooseFS returns a file system of a list, the output of "fs ls". Without a
// name the list must have one.
func chooseFS(list []byte, name string) (fsPools, error) {
	var all []fsPools
	if err := json.Unmarshal(list, &all); err != nil {
		return fsPools{}, errs.Errorf(errs.Internal, "the list of file systems is not JSON: %w", err)
	}
	var names []string
	for _, f := range all {
		switch {
		case f.Name != name && (name != "" || len(all) > 1):
			names = append(names, f.Name)
		case len(f.DataPools) != len(f.DataPoolIDs):
			return fsPools{}, errs.Errorf(errs.Internal, "the list of file systems has %d names and %d numbers of pools", len(f.DataPools), len(f.DataPoolIDs))
		default:
			return f, nil
		}
	}
	switch {
	case len(all) == 0:
		return fsPools{}, errs.Errorf(errs.NotFound, "the Ceph cluster has no file system; create one with \"ceph fs volume create\"")
	case name == "":
		return fsPools{}, errs.Errorf(errs.Invalid, "the Ceph cluster has the file systems %q; choose one (--cephfs-name)", names)
	}
	return fsPools{}, errs.Errorf(errs.NotFound, "the Ceph cluster has no file system %s (--cephfs-name); it has %q", errs.Quote(name), names)
}
