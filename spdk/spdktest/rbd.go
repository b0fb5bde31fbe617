package spdktest

import (
	"context"
	"slices"
	"strconv"
)

// Image is a Ceph RBD image, available to processes with RBD.
type Image struct {
	Pool, Namespace, Name string
	Size                  uint64 // bytes
}

func (i Image) path() string { return i.Pool + "/" + i.Namespace + "/" + i.Name }

// PutImage adds an RBD image or changes its size.
func (n *Network) PutImage(i Image) {
	n.change(func() { n.images[i.path()] = i })
}

type rbdDevice struct {
	Image
	cluster, user string
}

// rbdMethods is [R]: the recorded process was built without RBD.
func rbdMethods() map[string]method {
	name := needs(map[string]kind{"name": text}, "name")
	return map[string]method{
		"bdev_rbd_create": {run: rbdCreate, takes: needs(map[string]kind{
			"name": text, "user_id": text, "pool_name": text, "rbd_name": text, "namespace_name": text, "block_size": number,
			"config": object, "cluster_name": text, "uuid": text, "read_only": flag,
		}, "pool_name", "rbd_name", "block_size")},
		"bdev_rbd_delete": {run: deleteKind(rbdDisk), takes: name},
		"bdev_rbd_register_cluster": {run: registerCluster, takes: needs(map[string]kind{
			"name": text, "user_id": text, "config_param": object, "config_file": text, "key_file": text, "core_mask": text,
		})},
		"bdev_rbd_unregister_cluster": {run: unregisterCluster, takes: name},
		"bdev_rbd_get_clusters_info":  {run: clustersInfo, takes: needs(name.allowed)},
	}
}

func registerCluster(p *Process, _ context.Context, a args) (any, *Error) {
	name := orElse(a.text("name"), "rbd_cluster")
	if slices.Contains(p.clusters, name) {
		return nil, errno(ePERM)
	}
	p.clusters = append(p.clusters, name)
	return name, nil
}

// unregisterCluster does not distinguish a missing cluster from one in use.
func unregisterCluster(p *Process, _ context.Context, a args) (any, *Error) {
	i := slices.Index(p.clusters, a.text("name"))
	if i < 0 || slices.ContainsFunc(p.bdevs, func(b *bdev) bool { return b.kind == rbdDisk && b.image.cluster == p.clusters[i] }) {
		return nil, errno(ePERM)
	}
	p.clusters = slices.Delete(p.clusters, i, i+1)
	return true, nil
}

// clustersInfo returns a list, or one object for a name.
func clustersInfo(p *Process, _ context.Context, a args) (any, *Error) {
	all := []map[string]any{}
	for _, name := range p.clusters {
		shown := map[string]any{"cluster_name": name}
		if a.text("name") == name {
			return shown, nil
		}
		all = append(all, shown)
	}
	if len(all) == 0 || a.has("name") {
		return nil, errno(eNOENT)
	}
	return all, nil
}

// rbdCreate returns "Operation not permitted" for all errors of Ceph.
func rbdCreate(p *Process, _ context.Context, a args) (any, *Error) {
	size := a.number("block_size")
	image, there := p.network.images[Image{Pool: a.text("pool_name"), Namespace: a.text("namespace_name"), Name: a.text("rbd_name")}.path()]
	switch {
	case size == 0 || size%512 != 0:
		return nil, errno(eINVAL)
	case !there || a.has("cluster_name") && !slices.Contains(p.clusters, a.text("cluster_name")):
		return nil, errno(ePERM)
	}
	name := a.text("name")
	for i := 0; !a.has("name") && (name == "" || p.bdev(name) != nil); i++ {
		name = "Ceph" + strconv.Itoa(i)
	}
	b := &bdev{
		name: name, uuid: orElse(a.text("uuid"), newUUID()), kind: rbdDisk, blockSize: uint32(size), blocks: image.Size / size,
		image: rbdDevice{image, a.text("cluster_name"), a.text("user_id")},
	}
	if !p.add(b) {
		return nil, errno(eEXIST)
	}
	return name, nil
}
