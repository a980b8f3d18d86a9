package doctor

import (
	"fmt"
	"syscall"
)

// fileSystems are those on which SQLite's locks do not work, or may not, by the
// magic numbers of statfs(2).
var fileSystems = map[uint32]struct{ name, kind string }{
	0x6969:     {"NFS", "network"},
	0x517b:     {"SMB", "network"},
	0xff534d42: {"CIFS", "network"},
	0xfe534d42: {"SMB2", "network"},
	0x5346414f: {"AFS", "network"},
	0x6b414653: {"AFS", "network"},
	0x00c36400: {"Ceph", "network"},
	0x0bd00bd0: {"Lustre", "network"},
	0x19830326: {"BeeGFS", "network"},
	0x47504653: {"GPFS", "network"},
	0x01161970: {"GFS2", "network"},
	0x7461636f: {"OCFS2", "network"},
	0x65735546: {"FUSE", "unsure"},
	0x01021997: {"9p", "unsure"},
	0x786f4256: {"a shared folder of VirtualBox", "unsure"},
}

// fileSystem says what a file is on: local, network or unsure.
func fileSystem(path string) (name, kind string) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return err.Error(), "unsure"
	}
	if known, ok := fileSystems[uint32(s.Type)]; ok {
		return known.name, known.kind
	}
	return fmt.Sprintf("a local file system (%#x)", uint32(s.Type)), "local"
}
