package access

import (
	"fmt"
	"net/netip"
	"strings"
)

// Ceph identifies a cluster and the user. ClusterID or Monitors is set.
type Ceph struct {
	ClusterID string           // in the reader's configuration
	Monitors  []netip.AddrPort // port 0: the default ports
	User      string           // without "client."; empty: the reader's own
	Key       string           // its name, never the key itself
}

// RBD is an image of a Ceph pool.
type RBD struct {
	Ceph
	Pool      string
	Namespace string // "": the default
	Image     string
	// ImageID is Ceph's internal id of the image, if known: another image that
	// later has the same name is not the volume.
	ImageID string
}

// Update returns what a publish context adds to the locator of a volume context,
// as the volume's image was migrated or copied since: now is its locator today.
func Update(context, now Access) map[string]string {
	was, ok := context.(RBD)
	is, ok2 := now.(RBD)
	if !ok || !ok2 || was.ImageID == "" || is.ImageID == "" || was.ImageID == is.ImageID {
		return nil
	}
	return map[string]string{keyImageID: is.ImageID}
}

// CephFS is a directory of a Ceph file system.
type CephFS struct {
	Ceph
	FS   string // empty: the only one
	Path string // absolute and clean
}

func (RBD) Protocol() string { return protocolRBD }

// Protocol returns "cephfs".
func (CephFS) Protocol() string { return protocolCephFS }

const (
	protocolRBD    = "rbd"
	protocolCephFS = "cephfs"

	keyCluster   = "clusterID"
	keyMonitors  = "monitors"
	keyCephUser  = "cephUser"
	keyCephKey   = "cephKey"
	keyNamespace = "radosNamespace"
	keyImage     = "imageName"
	keyImageID   = "imageID"
	keyFS        = "fsName"
	keyPath      = "subvolumePath"
)

func cephKeys(own map[string][]string) map[string][]string {
	own[keyType], own[keyCluster], own[keyMonitors] = nil, nil, []string{"mon_host"}
	own[keyCephUser], own[keyCephKey] = []string{"user", "userID"}, nil
	return own
}

func rbdDialect() dialect {
	return dialect{
		protocol: protocolRBD,
		keys:     cephKeys(map[string][]string{keyPool: nil, keyNamespace: {"rados_namespace"}, keyImage: {"image"}, keyImageID: nil}),
		identity: []string{keyCluster, keyPool, keyNamespace, keyImage}, // a migration changes the image id
		build:    buildRBD,
	}
}

func cephFSDialect() dialect {
	return dialect{
		protocol: protocolCephFS,
		keys:     cephKeys(map[string][]string{keyFS: nil, keyPath: {"rootPath"}}),
		identity: []string{keyCluster, keyFS, keyPath},
		foreign:  []string{"subvolumeName"},
		build:    buildCephFS,
	}
}

func (f fields) ceph() (c Ceph, err error) {
	c.ClusterID = f[keyCluster]
	if f[keyMonitors] != "" {
		if c.Monitors, err = parseEndpoints(keyMonitors, f[keyMonitors]); err != nil {
			return c, err
		}
	}
	if c.ClusterID == "" && len(c.Monitors) == 0 {
		return c, fmt.Errorf("%s is missing: give the name of the cluster, or the addresses of its monitors under %s", keyCluster, keyMonitors)
	}
	c.User = strings.TrimPrefix(f[keyCephUser], "client.")
	for key, value := range map[string]string{keyCluster: c.ClusterID, keyCephUser: c.User} {
		if err := checkWord(key, value, "/@"); err != nil {
			return c, err
		}
	}
	c.Key, err = f.reference(keyCephKey)
	return c, err
}

// checkWord rejects values that are not one word of a Ceph name: with blanks,
// control characters, or one of marks, which have a meaning of their own.
func checkWord(key, value, marks string) error {
	for _, r := range value {
		if r <= ' ' || r == 0x7f || r == 0xfffd || strings.ContainsRune(marks, r) {
			return fmt.Errorf("%s %s contains %q, which is not allowed in Ceph names", key, Quote(value), r)
		}
	}
	if len(value) > 255 {
		return fmt.Errorf("%s %s is longer than 255 bytes", key, Quote(value))
	}
	return nil
}

func buildRBD(f fields) (Access, error) {
	r := RBD{Pool: f[keyPool], Namespace: f[keyNamespace], Image: f[keyImage], ImageID: f[keyImageID]}
	for _, key := range []string{keyPool, keyImage} {
		if f[key] == "" {
			return nil, fmt.Errorf("%s is missing: an RBD image is named by %s and %s", key, keyPool, keyImage)
		}
	}
	for _, key := range []string{keyPool, keyNamespace, keyImage, keyImageID} {
		if err := checkWord(key, f[key], "/@"); err != nil {
			return nil, err
		}
	}
	var err error
	if r.Ceph, err = f.ceph(); err != nil {
		return nil, err
	}
	return r, nil
}

func buildCephFS(f fields) (Access, error) {
	c := CephFS{FS: f[keyFS], Path: f[keyPath]}
	if err := checkWord(keyFS, c.FS, "/@=,"); err != nil {
		return nil, err
	}
	if err := checkAbsolute(keyPath, c.Path); err != nil {
		return nil, err
	}
	var err error
	if c.Ceph, err = f.ceph(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c Ceph) encode(out map[string]string) map[string]string {
	monitors := make([]string, 0, len(c.Monitors))
	for _, m := range c.Monitors {
		if m.Port() == 0 {
			monitors = append(monitors, m.Addr().String())
		} else {
			monitors = append(monitors, m.String())
		}
	}
	set(out, keyMonitors, strings.Join(monitors, ","))
	set(out, keyCluster, c.ClusterID)
	set(out, keyCephUser, c.User)
	set(out, keyCephKey, c.Key)
	return out
}

func (r RBD) encode() map[string]string {
	out := map[string]string{keyType: protocolRBD, keyPool: r.Pool, keyImage: r.Image}
	set(out, keyNamespace, r.Namespace)
	set(out, keyImageID, r.ImageID)
	return r.Ceph.encode(out)
}

func (c CephFS) encode() map[string]string {
	out := map[string]string{keyType: protocolCephFS, keyPath: c.Path}
	set(out, keyFS, c.FS)
	return c.Ceph.encode(out)
}
