//go:build !linux

package bus

// inMemory can only tell on Linux.
func inMemory(string) (bool, error) { return false, nil }

// freeSpace is a guess where it can't be asked.
func freeSpace(string) int64 { return 1 << 40 }

// diskSize is not known where it can't be asked.
func diskSize(string) int64 { return 0 }
