package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// podVolume is a volume that pods of this machine use.
type podVolume struct {
	name       string // of the PersistentVolume
	capability Capability
	targets    []Target
}

// addPods adds to volumes that were not created here the paths at which pods of
// this machine use them, and the name of the PersistentVolume if the driver has
// none: drivers list neither.
func (d *Driver) addPods(ctx context.Context, volumes []Volume) error {
	pods, err := d.podVolumes(ctx)
	for i := range volumes {
		v := &volumes[i]
		p, used := pods[v.ID]
		if v.State != StateForeign || !used {
			continue
		}
		if v.Name == v.ID {
			v.Name = cmp.Or(p.name, v.ID)
		}
		if len(v.Targets) == 0 {
			v.Capability, v.Targets = p.capability, p.targets
		}
	}
	return err
}

// podVolumes returns the volumes of pods by id: the kubelet records which volume
// is at a path, and the mount table shows that it is there. None: the driver's
// socket is not in the directory of a kubelet.
func (d *Driver) podVolumes(ctx context.Context) (map[string]*podVolume, error) {
	socket, err := unixsock.ParseEndpoint(cmp.Or(d.config.NodeEndpoint, d.config.Endpoint))
	plugins := filepath.Dir(filepath.Dir(socket))
	if err != nil || filepath.Base(plugins) != "plugins" {
		return nil, err
	}
	table, err := mount.Table(ctx)
	if err != nil {
		return nil, err
	}
	mounts := map[string]mount.Entry{}
	for _, e := range table {
		mounts[e.Target] = e
	}
	devices := filepath.Join(plugins, "kubernetes.io", "csi", "volumeDevices")
	all := map[string]*podVolume{}
	for pattern, targets := range map[string]func(dir string) string{
		filepath.Join(filepath.Dir(plugins), "pods", "*", "volumes", "kubernetes.io~csi", "*", "vol_data.json"): func(dir string) string { return filepath.Join(dir, "mount") },
		filepath.Join(devices, "*", "data", "vol_data.json"): func(dir string) string {
			return filepath.Join(devices, "publish", filepath.Base(filepath.Dir(dir)), "*")
		},
	} {
		records, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, record := range records {
			id, name, err := d.readPodVolume(record)
			if err != nil {
				return nil, err
			}
			paths, err := filepath.Glob(targets(filepath.Dir(record)))
			if err != nil {
				return nil, err
			}
			for _, path := range paths {
				e, mounted := mounts[path]
				if !mounted || id == "" {
					continue
				}
				v := cmp.Or(all[id], &podVolume{name: name})
				info, err := os.Lstat(path)
				if v.capability.Block = err == nil && !info.IsDir(); !v.capability.Block {
					v.capability.FSType = e.FSType
				}
				v.targets = append(v.targets, Target{Path: path, ReadOnly: e.ReadOnly(), Published: true})
				all[id] = v
			}
		}
	}
	return all, nil
}

// readPodVolume reads the kubelet's record of a volume. No id: it is another
// driver's, or is being written or removed.
func (d *Driver) readPodVolume(path string) (id, pv string, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", nil
	}
	var record struct {
		DriverName   string `json:"driverName"`
		VolumeHandle string `json:"volumeHandle"`
		SpecVolID    string `json:"specVolID"`
	}
	if err != nil || json.Unmarshal(text, &record) != nil || record.DriverName != d.info.Name {
		return "", "", err
	}
	return record.VolumeHandle, record.SpecVolID, nil
}
