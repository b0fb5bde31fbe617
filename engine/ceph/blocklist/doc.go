// Package blocklist fences clients of a Ceph cluster with the OSD blocklist.
//
// A fence has entries for its blocks, for the other addresses of the clients in
// them, and for the client instances recorded there. The first two end with the
// fence. The last stay for years: a device that was mapped before the fence can
// still be there after it, and would write again (measured with krbd). A device
// that is mapped after the fence is another instance.
//
// The monitors acknowledge an entry before the OSDs enforce it, so Apply asks
// every OSD and every placement group of volumes for its map.
package blocklist
