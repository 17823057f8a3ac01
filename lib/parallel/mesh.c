#include "parallel/mesh.h"

const struct meg_mesh meg_mesh_one = { &meg_comm_self, &meg_comm_self, &meg_comm_self };
